#include "plan/layer_spec.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <utility>

#include "absl/strings/str_cat.h"

namespace headrace {
namespace {

constexpr int64_t kFloat = 4, kRounded = 2;  // bytes
constexpr int64_t kTokenId = 4;

// Cost of an element-wise pass, a number that only has to be about right: FLOPs an element.
constexpr double kNormFlops = 8, kActivationFlops = 16, kSoftmaxFlops = 10;

int64_t FloatBytes(int64_t elements) { return AlignUp(kFloat * elements); }
int64_t ActBytes(const Layout& on, int64_t elements) {
  return AlignUp(on.activation_bytes * elements);
}

class ParameterList {
 public:
  ParameterList(std::string prefix, double init_std)
      : prefix_(std::move(prefix)), init_std_(init_std) {}

  void Matrix(const std::string& name, int64_t out, int64_t in, double std_scale = 1) {
    list_.push_back({absl::StrCat(prefix_, name, ".weight"),
                     {out, in},
                     Init::kNormal,
                     init_std_ * std_scale,
                     false});
  }
  void JoinedMatrix(const std::string& name, int64_t out, int64_t in) {
    Matrix(name, out, in);
    list_.back().joins_previous = true;
  }
  void Gain(const std::string& name, int64_t width) {
    list_.push_back({absl::StrCat(prefix_, name, ".weight"), {width}, Init::kOne, 0, false});
  }
  void Bias(const std::string& name, int64_t width) {
    list_.push_back({absl::StrCat(prefix_, name, ".bias"), {width}, Init::kZero, 0, false});
  }
  std::vector<ParameterSpec> Take() { return std::move(list_); }

 private:
  std::string prefix_;
  double init_std_;
  std::vector<ParameterSpec> list_;
};

LayerSpec Embedding(const Model& m) {
  const bool gpt2 = m.family == ModelFamily::kGpt2;
  ParameterList list(gpt2 ? "transformer." : "model.", m.init_std);
  list.Matrix(gpt2 ? "wte" : "embed_tokens", m.vocabulary, m.width);
  if (gpt2) list.Matrix("wpe", m.context, m.width);
  return {0, LayerKind::kEmbedding, "embedding", list.Take(), {}};
}

LayerSpec Gpt2Block(const Model& m, int64_t i) {
  // GPT-2 scales the projections that add to the residual stream by their number.
  const double residual = 1 / std::sqrt(2.0 * static_cast<double>(m.layers));
  ParameterList list(absl::StrCat("transformer.h.", i, "."), m.init_std);
  list.Gain("ln_1", m.width);
  list.Bias("ln_1", m.width);
  list.Matrix("attn.c_attn", 3 * m.width, m.width);
  list.Bias("attn.c_attn", 3 * m.width);
  list.Matrix("attn.c_proj", m.width, m.width, residual);
  list.Bias("attn.c_proj", m.width);
  list.Gain("ln_2", m.width);
  list.Bias("ln_2", m.width);
  list.Matrix("mlp.c_fc", m.mlp_width, m.width);
  list.Bias("mlp.c_fc", m.mlp_width);
  list.Matrix("mlp.c_proj", m.width, m.mlp_width, residual);
  list.Bias("mlp.c_proj", m.width);
  return {i + 1, LayerKind::kGpt2Block, absl::StrCat("block ", i), list.Take(), {}};
}

LayerSpec LlamaBlock(const Model& m, int64_t i) {
  ParameterList list(absl::StrCat("model.layers.", i, "."), m.init_std);
  list.Gain("input_layernorm", m.width);
  list.Matrix("self_attn.q_proj", m.heads * m.head_size, m.width);
  list.JoinedMatrix("self_attn.k_proj", m.kv_heads * m.head_size, m.width);
  list.JoinedMatrix("self_attn.v_proj", m.kv_heads * m.head_size, m.width);
  list.Matrix("self_attn.o_proj", m.width, m.width);
  list.Gain("post_attention_layernorm", m.width);
  list.Matrix("mlp.gate_proj", m.mlp_width, m.width);
  list.JoinedMatrix("mlp.up_proj", m.mlp_width, m.width);
  list.Matrix("mlp.down_proj", m.width, m.mlp_width);
  return {i + 1, LayerKind::kLlamaBlock, absl::StrCat("block ", i), list.Take(), {}};
}

LayerSpec Head(const Model& m) {
  const bool gpt2 = m.family == ModelFamily::kGpt2;
  ParameterList norm(gpt2 ? "transformer." : "model.", m.init_std);
  norm.Gain(gpt2 ? "ln_f" : "norm", m.width);
  if (gpt2) norm.Bias("ln_f", m.width);
  ParameterList projection("", m.init_std);
  projection.Matrix("lm_head", m.vocabulary, m.width);
  LayerSpec head{m.layers + 1, LayerKind::kHead, "head", norm.Take(), {}};
  std::vector<ParameterSpec>& list = m.tied ? head.borrowed : head.parameters;
  list.push_back(projection.Take().front());
  if (m.tied) list.back().owner = gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight";
  return head;
}

// Columns of the packed q, k, v of a token.
int64_t QkvWidth(const Model& m) { return (m.heads + 2 * m.kv_heads) * m.head_size; }

// Bytes of the tensors that hold `parameters`.
// `element_bytes`: of fp32 4, of a rounded copy 2.
int64_t CarvedBytes(const std::vector<ParameterSpec>& parameters, int64_t element_bytes = kFloat) {
  int64_t total = 0, open = 0;
  for (const ParameterSpec& p : parameters) {
    if (!p.joins_previous) {
      total += AlignUp(open);
      open = 0;
    }
    open += element_bytes * p.elements();
  }
  return total + AlignUp(open);
}

int64_t LinearElements(const LayerSpec& layer) {
  int64_t total = 0;
  for (const auto* list : {&layer.parameters, &layer.borrowed}) {
    for (const ParameterSpec& p : *list) {
      if (p.shape.size() == 2) total += p.elements();
    }
  }
  return total;
}

// Query-key pairs under the causal mask, times 2 · width: one of attention's products.
double AttentionProductFlops(const Model& m, const MicroBatchShape& s) {
  const double length = static_cast<double>(s.length);
  return static_cast<double>(s.sequences) * length * (length + 1) / 2 * 2 *
         static_cast<double>(m.width);
}

bool IsBlock(const LayerSpec& layer) {
  return layer.kind == LayerKind::kGpt2Block || layer.kind == LayerKind::kLlamaBlock;
}

int64_t SavedBytes(std::initializer_list<int64_t> shape, int64_t element_bytes) {
  int64_t elements = 1;
  for (int64_t d : shape) elements *= d;
  return AlignUp(element_bytes * elements);
}

// Calls visit(name, shape, bytes of an element) for each tensor a layer saves. Asked in every step,
// so that it does not allocate.
template <typename Visit>
void VisitSaved(const Model& m, const LayerSpec& layer, const MicroBatchShape& s, const Layout& on,
                const Visit& visit) {
  if (!IsBlock(layer)) return;
  const int64_t n = s.tokens(), act = on.activation_bytes;
  const bool layer_norm = m.family == ModelFamily::kGpt2;
  if (layer_norm) visit("first norm mean", {n}, kFloat);
  visit("first norm rstd", {n}, kFloat);
  visit("first norm output", {n, m.width}, act);
  visit("query, key, value", {n, QkvWidth(m)}, act);
  visit("attention output", {n, m.width}, act);
  visit("attention log-sum-exp", {s.sequences, m.heads, s.length}, kFloat);
  visit("residual", {n, m.width}, act);
  if (layer_norm) visit("second norm mean", {n}, kFloat);
  visit("second norm rstd", {n}, kFloat);
  visit("second norm output", {n, m.width}, act);
  visit("mlp input", {n, layer_norm ? m.mlp_width : 2 * m.mlp_width}, act);
}

// One block of rows: logits; the norm's output, then its gradient; the norm's statistics.
int64_t HeadBlockBytes(const Model& m, const MicroBatchShape& s, const Layout& on) {
  const int64_t rows = std::min(s.tokens(), on.head_rows);
  const int64_t statistics = m.family == ModelFamily::kGpt2 ? 2 : 1;
  return ActBytes(on, rows * m.vocabulary) + ActBytes(on, rows * m.width) +
         statistics * FloatBytes(rows);
}

// Element-wise work of one pass.
double ElementFlops(const Model& m, const LayerSpec& layer, const MicroBatchShape& s) {
  const double n = static_cast<double>(s.tokens());
  const double width = static_cast<double>(m.width);
  if (layer.kind == LayerKind::kEmbedding) return 2 * n * width;
  if (layer.kind == LayerKind::kHead) return n * width * kNormFlops;
  return 2 * n * width * kNormFlops + n * static_cast<double>(m.mlp_width) * kActivationFlops;
}

}  // namespace

int64_t AlignUp(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

int64_t ParameterSpec::elements() const {
  int64_t n = 1;
  for (int64_t s : shape) n *= s;
  return n;
}

int64_t LayerSpec::parameter_elements() const {
  int64_t n = 0;
  for (const ParameterSpec& p : parameters) n += p.elements();
  return n;
}

std::vector<LayerSpec> BuildLayers(const Model& model) {
  std::vector<LayerSpec> layers;
  layers.reserve(model.layers + 2);
  layers.push_back(Embedding(model));
  for (int64_t i = 0; i < model.layers; ++i) {
    layers.push_back(model.family == ModelFamily::kGpt2 ? Gpt2Block(model, i)
                                                        : LlamaBlock(model, i));
  }
  layers.push_back(Head(model));
  return layers;
}

bool BorrowsFromOwnStage(const std::vector<LayerSpec>& stage_layers) {
  return !stage_layers.empty() && stage_layers.front().kind == LayerKind::kEmbedding &&
         !stage_layers.back().borrowed.empty();
}

int64_t RopeTableBytes(const Model& model) {
  return FloatBytes(model.context * (model.head_size / 2));
}

Layout LayoutOn(DeviceKind device, Precision precision, int threads) {
  Layout on;
  if (device == DeviceKind::kCpu) {
    on.threads = threads;
    return on;
  }
  on.head_rows = kCudaHeadRows;
  if (precision == Precision::kFp32) return on;
  on.activation_bytes = 2;
  on.rounded_weights = true;
  return on;
}

int64_t WeightBytes(const Model& model, const std::vector<LayerSpec>& stage_layers,
                    const Layout& on) {
  int64_t total = 0;
  bool llama = false;
  const bool alias = BorrowsFromOwnStage(stage_layers);
  for (const LayerSpec& layer : stage_layers) {
    total += CarvedBytes(layer.parameters);
    if (!alias) total += CarvedBytes(layer.borrowed);
    if (on.rounded_weights && layer.kind != LayerKind::kEmbedding) {
      total += CarvedBytes(layer.parameters, kRounded) + CarvedBytes(layer.borrowed, kRounded);
    }
    llama = llama || layer.kind == LayerKind::kLlamaBlock;
  }
  return total + (llama ? 2 * RopeTableBytes(model) : 0);
}

int64_t GradientBytes(const std::vector<LayerSpec>& stage_layers) {
  int64_t total = 0;
  for (const LayerSpec& layer : stage_layers) {
    total += CarvedBytes(layer.parameters) + CarvedBytes(layer.borrowed);
  }
  return total;
}

int64_t OptimizerBytes(const std::vector<LayerSpec>& stage_layers, int64_t moments) {
  int64_t total = 0;
  for (const LayerSpec& layer : stage_layers) {
    for (const ParameterSpec& p : layer.parameters) total += moments * AlignUp(p.bytes());
  }
  return total;
}

std::vector<SavedSpec> SavedTensors(const Model& m, const LayerSpec& layer,
                                    const MicroBatchShape& s, const Layout& on) {
  std::vector<SavedSpec> saved;
  VisitSaved(m, layer, s, on,
             [&saved](const char* name, std::initializer_list<int64_t> shape, int64_t element) {
               saved.push_back({name, shape, SavedBytes(shape, element)});
             });
  return saved;
}

int64_t SavedBytes(const Model& model, const LayerSpec& layer, const MicroBatchShape& shape,
                   const Layout& on) {
  int64_t total = 0;
  VisitSaved(model, layer, shape, on,
             [&total](const char*, std::initializer_list<int64_t> tensor, int64_t element) {
               total += SavedBytes(tensor, element);
             });
  return total;
}

int64_t InputBytes(const Model& model, const LayerSpec& layer, const MicroBatchShape& shape,
                   const Layout& on) {
  if (layer.kind == LayerKind::kEmbedding) return AlignUp(kTokenId * shape.tokens());
  return ActBytes(on, shape.tokens() * model.width);
}

int64_t OutputBytes(const Model& model, const LayerSpec& layer, const MicroBatchShape& shape,
                    const Layout& on) {
  if (layer.kind == LayerKind::kHead) return 0;
  return ActBytes(on, shape.tokens() * model.width);
}

int64_t AttentionScratchBytes(int64_t length, int64_t size, int threads) {
  size = std::max<int64_t>(size, 4);  // for bf16's strips of 14, which are in here too
  const int64_t packed = FloatBytes((length + kAttentionTileKeys) * size + 16);
  const int64_t scores = FloatBytes(length * kAttentionQueries);
  const int64_t panel = FloatBytes(size * kAttentionQueries);
  return threads * (2 * packed + FloatBytes(length * size) + 3 * scores + 5 * panel);
}

int64_t ForwardWorkspaceBytes(const Model& m, const LayerSpec& layer, const MicroBatchShape& s,
                              const Layout& on) {
  if (layer.kind == LayerKind::kEmbedding) return 0;
  if (layer.kind == LayerKind::kHead) return HeadBlockBytes(m, s, on);
  // The activation, once attention is over.
  return std::max(AttentionScratchBytes(s.length, m.head_size, on.threads),
                  ActBytes(on, s.tokens() * m.mlp_width));
}

int64_t BackwardWorkspaceBytes(const Model& m, const LayerSpec& layer, const MicroBatchShape& s,
                               const Layout& on) {
  const int64_t n = s.tokens();
  if (layer.kind == LayerKind::kEmbedding) {
    return m.embedding_dropout > 0 ? ActBytes(on, n * m.width) : 0;
  }
  if (layer.kind == LayerKind::kHead) return HeadBlockBytes(m, s, on);
  // Two gradients of a token's width; then, in turn, the activation and its gradient, or the
  // gradient of q, k, v with attention's scratch.
  const int64_t attention =
      ActBytes(on, n * QkvWidth(m)) + AttentionScratchBytes(s.length, m.head_size, on.threads);
  const int64_t mlp = layer.kind == LayerKind::kGpt2Block
                          ? ActBytes(on, n * m.mlp_width)
                          : ActBytes(on, n * m.mlp_width) + ActBytes(on, n * 2 * m.mlp_width);
  return 2 * ActBytes(on, n * m.width) + std::max(attention, mlp);
}

int64_t StageWorkspaceBytes(const Model& model, const std::vector<LayerSpec>& stage_layers,
                            const MicroBatchShape& shape, const Layout& on, bool training,
                            bool keeps_nothing) {
  int64_t saved = 0, forward = 0, backward = 0;
  for (const LayerSpec& layer : stage_layers) {
    saved = std::max(saved, SavedBytes(model, layer, shape, on));
    forward = std::max(forward, ForwardWorkspaceBytes(model, layer, shape, on));
    backward = std::max(backward, BackwardWorkspaceBytes(model, layer, shape, on));
  }
  const int64_t two = 2 * ActBytes(on, shape.tokens() * model.width);
  return std::max(forward + (keeps_nothing ? two + saved : 0), training ? two + backward : 0);
}

double ForwardFlops(const Model& model, const LayerSpec& layer, const MicroBatchShape& shape) {
  if (layer.kind == LayerKind::kHead) return 0;
  double flops = ElementFlops(model, layer, shape);
  const double n = static_cast<double>(shape.tokens());
  if (IsBlock(layer)) {
    flops += 2 * n * static_cast<double>(LinearElements(layer)) +
             2 * AttentionProductFlops(model, shape);
  }
  return flops;
}

double RecomputeFlops(const Model& model, const LayerSpec& layer, const MicroBatchShape& shape) {
  return ForwardFlops(model, layer, shape);
}

double BackwardFlops(const Model& model, const LayerSpec& layer, const MicroBatchShape& shape) {
  const double elements = 2 * ElementFlops(model, layer, shape);
  if (layer.kind == LayerKind::kEmbedding) return elements;
  const double n = static_cast<double>(shape.tokens());
  const double product = 2 * n * static_cast<double>(LinearElements(layer));
  if (layer.kind == LayerKind::kHead) {
    return 1.5 * elements + 3 * product + n * static_cast<double>(model.vocabulary) * kSoftmaxFlops;
  }
  // Attention forms its scores again, then the gradients of probabilities, values, queries, keys.
  return elements + 2 * product + 5 * AttentionProductFlops(model, shape);
}

}  // namespace headrace
