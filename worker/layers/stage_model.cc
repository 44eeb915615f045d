#include "worker/layers/stage_model.h"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "worker/layers/carver.h"
#include "worker/layers/layer.h"

namespace headrace {
namespace {

// Carves weights and gradients. Joined parameters share one tensor, each with a view of its rows.
class ParameterCarver {
 public:
  ParameterCarver(const StageShape& shape, Arena* arena) : shape_(shape), arena_(arena) {}

  absl::StatusOr<std::vector<Parameter>> Carve() {
    for (const LayerSpec& layer : shape_.layers) {
      HEADRACE_RETURN_IF_ERROR(CarveList(layer, layer.parameters, false));
      HEADRACE_RETURN_IF_ERROR(CarveList(layer, layer.borrowed, true));
    }
    return std::move(parameters_);
  }

 private:
  absl::Status CarveList(const LayerSpec& layer, const std::vector<ParameterSpec>& specs,
                         bool borrowed) {
    for (size_t i = 0; i < specs.size();) {
      size_t end = i + 1;
      while (end < specs.size() && specs[end].joins_previous) ++end;
      HEADRACE_RETURN_IF_ERROR(
          CarveGroup(layer, {specs.begin() + i, specs.begin() + end}, borrowed));
      i = end;
    }
    return absl::OkStatus();
  }

  absl::Status CarveGroup(const LayerSpec& layer, const std::vector<ParameterSpec>& group,
                          bool borrowed) {
    int64_t elements = 0;
    for (const ParameterSpec& spec : group) elements += spec.elements();
    const std::string& name = group.front().name;
    Tensor weight, gradient, rounded;
    if (borrowed && BorrowsFromOwnStage(shape_.layers)) {
      weight = parameters_.front().weight;
    } else {
      HEADRACE_ASSIGN_OR_RETURN(
          weight, arena_->Carve(MemoryKind::kWeights, name, ElementType::kFloat32, {elements}));
    }
    if (shape_.layout().rounded_weights && layer.kind != LayerKind::kEmbedding) {
      HEADRACE_ASSIGN_OR_RETURN(rounded,
                                arena_->Carve(MemoryKind::kWeights, absl::StrCat("rounded ", name),
                                              ElementType::kBfloat16, {elements}));
    }
    if (shape_.training) {
      HEADRACE_ASSIGN_OR_RETURN(
          gradient, arena_->Carve(MemoryKind::kGradients, absl::StrCat("gradient of ", name),
                                  ElementType::kFloat32, {elements}));
    }
    int64_t offset = 0;
    for (const ParameterSpec& spec : group) {
      parameters_.push_back({spec, layer.index, View(weight, offset, spec.shape),
                             View(gradient, offset, spec.shape), View(rounded, offset, spec.shape),
                             borrowed});
      offset += spec.elements();
    }
    // Whoever writes the one weight of a tie rounds it for the head.
    if (borrowed && BorrowsFromOwnStage(shape_.layers)) {
      parameters_.front().rounded = parameters_.back().rounded;
    }
    return absl::OkStatus();
  }

  static Tensor View(const Tensor& whole, int64_t offset, const std::vector<int64_t>& shape) {
    if (whole.data == nullptr) return {};
    return {static_cast<char*>(whole.data) + offset * ElementBytes(whole.type), whole.type, shape};
  }

  const StageShape& shape_;
  Arena* const arena_;
  std::vector<Parameter> parameters_;
};

class StageModelImpl : public StageModel {
 public:
  StageModelImpl(const StageShape& shape, Ops* ops, std::vector<Parameter> parameters,
                 Tensor workspace, RopeTables rope)
      : shape_(shape), ops_(ops), parameters_(std::move(parameters)), workspace_(workspace) {
    for (const LayerSpec& spec : shape_.layers) AddLayer(spec, rope);
    places_.resize(layers_.size());
  }

  void Initialise(uint64_t seed) override;
  void RoundWeights() override {
    for (const Parameter& p : parameters_) p.Round(ops_);
  }
  std::vector<Parameter>& parameters() override { return parameters_; }
  void Forward(const MicroBatch& mb, const void* input, Act output, void* kept) override {
    Run(mb, input, output, kept, false);
  }
  void Recompute(const MicroBatch& mb, const void* input, void* kept) override {
    Run(mb, input, nullptr, kept, true);
  }
  void Backward(const MicroBatch& mb, const void* input, const void* kept, ConstAct output_gradient,
                Act input_gradient) override;
  void Logits(const MicroBatch& mb, const void* input, int64_t position, float* logits) override;
  void ZeroGradients() override;
  void Observe(TensorObserver observer) override { observer_ = std::move(observer); }

 private:
  // Where one layer's tensors lie while a micro-batch goes through it.
  struct Place {
    void* saved = nullptr;
    Act output;
  };

  void AddLayer(const LayerSpec& spec, RopeTables rope);
  void Run(const MicroBatch& mb, const void* input, Act output, void* kept, bool recompute);
  // Sets places_, one for each layer: in `kept`, one after the other; without it, all layers save
  // to the same place in the workspace, which a layer is done with when the next begins, and
  // outputs take turns. Returns the workspace that is left for temporaries. The last layer's output
  // is the caller's.
  void* SetPlaces(const MicroBatchShape& shape, void* kept);
  void Show(const MicroBatch& mb, size_t layer, const char* what, ConstAct data) const;

  const StageShape shape_;
  Ops* const ops_;
  std::vector<Parameter> parameters_;
  const Tensor workspace_;
  std::vector<std::unique_ptr<Layer>> layers_;
  std::vector<Place> places_;  // of the call at hand; kept, so that no call allocates
  HeadLayer* head_ = nullptr;  // the last of layers_, on the last stage
  TensorObserver observer_;
};

void StageModelImpl::AddLayer(const LayerSpec& spec, RopeTables rope) {
  std::vector<Weight> weights;
  for (const Parameter& p : parameters_) {
    if (p.layer != spec.index) continue;
    weights.push_back({p.weight.f32(), p.gradient.f32(), p.rounded.bf16()});
  }
  switch (spec.kind) {
    case LayerKind::kEmbedding:
      layers_.push_back(CreateEmbedding(shape_.model, spec, std::move(weights)));
      break;
    case LayerKind::kGpt2Block:
      layers_.push_back(CreateGpt2Block(shape_.model, spec, std::move(weights)));
      break;
    case LayerKind::kLlamaBlock:
      layers_.push_back(CreateLlamaBlock(shape_.model, spec, std::move(weights), rope));
      break;
    case LayerKind::kHead:
      auto head = CreateHead(shape_.model, spec, std::move(weights), shape_.layout().head_rows);
      head_ = head.get();
      layers_.push_back(std::move(head));
      break;
  }
}

void StageModelImpl::Initialise(uint64_t seed) {
  uint32_t index = 0;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& p = parameters_[i];
    index = i > 0 && parameters_[i - 1].layer == p.layer ? index + 1 : 0;
    float* w = p.weight.f32();
    const int64_t count = p.weight.elements();
    if (p.spec.init == Init::kNormal) {
      // A borrowed weight is the first parameter of layer 0, wherever it lies.
      const RandomStream stream =
          MakeStream(seed, RandomPurpose::kInit, p.borrowed ? 0 : static_cast<uint32_t>(p.layer),
                     p.borrowed ? 0 : index, 0);
      ops_->FillNormal(w, count, static_cast<float>(p.spec.init_std), stream);
    } else {
      ops_->Fill(w, count, p.spec.init == Init::kOne ? 1.0f : 0.0f);
    }
  }
  RoundWeights();
}

void* StageModelImpl::SetPlaces(const MicroBatchShape& shape, void* kept) {
  std::vector<Place>& places = places_;
  const int64_t elements = shape.tokens() * shape_.model.width;
  if (kept != nullptr) {
    Carver carver(kept, ops_->activation_type());
    for (size_t i = 0; i < places.size(); ++i) {
      places[i].saved =
          carver.Bytes(SavedBytes(shape_.model, shape_.layers[i], shape, shape_.layout()));
      places[i].output = i + 1 < places.size() ? carver.Acts(elements) : Act();
    }
    return workspace_.data;
  }
  Carver carver(workspace_.data, ops_->activation_type());
  Act outputs[2];
  for (Act& output : outputs) output = carver.Acts(elements);
  int64_t saved_bytes = 0;
  for (const LayerSpec& layer : shape_.layers) {
    saved_bytes = std::max(saved_bytes, SavedBytes(shape_.model, layer, shape, shape_.layout()));
  }
  void* saved = carver.Bytes(saved_bytes);
  for (size_t i = 0; i < places.size(); ++i) {
    places[i] = {saved, i + 1 < places.size() ? outputs[i % 2] : Act()};
  }
  return carver.Bytes(0);
}

void StageModelImpl::Run(const MicroBatch& mb, const void* input, Act output, void* kept,
                         bool recompute) {
  LayerCall call{mb, ops_, SetPlaces(mb.shape, kept)};
  places_.back().output = output;
  const void* x = input;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Act y = places_[i].output;
    if (recompute) {
      layers_[i]->Recompute(call, x, y, places_[i].saved);
    } else {
      layers_[i]->Forward(call, x, y, places_[i].saved);
      if (layers_[i].get() != head_) Show(mb, i, "output", y);
    }
    x = y.data();
  }
}

void StageModelImpl::Backward(const MicroBatch& mb, const void* input, const void* kept,
                              ConstAct output_gradient, Act input_gradient) {
  assert(shape_.training);
  LayerCall call{mb, ops_, nullptr};
  SetPlaces(mb.shape, const_cast<void*>(kept));
  Carver carver(workspace_.data, ops_->activation_type());
  Act gradients[2];
  for (Act& g : gradients) g = carver.Acts(mb.shape.tokens() * shape_.model.width);
  call.workspace = carver.Bytes(0);
  ConstAct dy = output_gradient;
  for (size_t i = layers_.size(); i-- > 0;) {
    const void* x = i == 0 ? input : places_[i - 1].output.data();
    const Act dx = i == 0 ? input_gradient : gradients[i % 2];
    layers_[i]->Backward(call, x, places_[i].saved, dy, dx);
    if (shape_.layers[i].kind != LayerKind::kEmbedding) Show(mb, i, "input gradient", dx);
    dy = dx;
  }
}

void StageModelImpl::Logits(const MicroBatch& mb, const void* input, int64_t position,
                            float* logits) {
  assert(head_ != nullptr);
  LayerCall call{mb, ops_, SetPlaces(mb.shape, nullptr)};
  const void* x = input;
  for (size_t i = 0; i + 1 < layers_.size(); ++i) {
    layers_[i]->Forward(call, x, places_[i].output, places_[i].saved);
    x = places_[i].output.data();
  }
  head_->Logits(call, call.Hidden(x) + position * shape_.model.width, logits);
}

void StageModelImpl::ZeroGradients() {
  for (const Parameter& p : parameters_) ops_->Zero(p.gradient.f32(), p.gradient.elements());
}

void StageModelImpl::Show(const MicroBatch& mb, size_t layer, const char* what,
                          ConstAct data) const {
  if (!observer_) return;
  const Tensor tensor{
      const_cast<void*>(data.data()), data.type(), {mb.shape.tokens(), shape_.model.width}};
  observer_(absl::StrCat("micro-batch ", mb.micro_batch, " layer ", shape_.layers[layer].index, " ",
                         what),
            tensor);
}

absl::StatusOr<RopeTables> CarveRope(const StageShape& shape, Arena* arena, Ops* ops) {
  const bool needed =
      std::any_of(shape.layers.begin(), shape.layers.end(),
                  [](const LayerSpec& layer) { return layer.kind == LayerKind::kLlamaBlock; });
  if (!needed) return RopeTables{};
  const Model& m = shape.model;
  Tensor tables[2];
  for (Tensor& table : tables) {
    HEADRACE_ASSIGN_OR_RETURN(
        table, arena->Carve(MemoryKind::kWeights, "rotary table", ElementType::kFloat32,
                            {m.context, m.head_size / 2}));
  }
  ops->RopeTable(tables[0].f32(), tables[1].f32(), m.context, m.head_size, m.rope_theta);
  return RopeTables{tables[0].f32(), tables[1].f32()};
}

}  // namespace

absl::StatusOr<std::unique_ptr<StageModel>> StageModel::Create(const StageShape& shape,
                                                               Arena* arena, Ops* ops) {
  assert(!shape.layers.empty());
  assert(ElementBytes(ops->activation_type()) == shape.layout().activation_bytes);
  HEADRACE_ASSIGN_OR_RETURN(std::vector<Parameter> parameters,
                            ParameterCarver(shape, arena).Carve());
  HEADRACE_ASSIGN_OR_RETURN(const RopeTables rope, CarveRope(shape, arena, ops));
  const int64_t bytes = StageWorkspaceBytes(shape.model, shape.layers, shape.largest,
                                            shape.layout(), shape.training, shape.recomputes);
  HEADRACE_ASSIGN_OR_RETURN(
      const Tensor workspace,
      arena->Carve(MemoryKind::kWorkspace, "workspace", ElementType::kFloat32, {bytes / 4}));
  return std::make_unique<StageModelImpl>(shape, ops, std::move(parameters), workspace, rope);
}

}  // namespace headrace
