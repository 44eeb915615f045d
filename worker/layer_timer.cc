#include "worker/layer_timer.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <memory>
#include <vector>

#include "common/status.h"
#include "worker/layers/stage_model.h"
#include "worker/pipeline/device_needs.h"
#include "worker/pipeline/device_numbers.h"

namespace headrace {
namespace {

constexpr int kRounds = 5;
constexpr double kEnoughSeconds = 0.3;  // of rounds
constexpr double kLongSeconds = 2;      // of a warm-up that needs no round after it

using SteadyClock = std::chrono::steady_clock;

double SecondsSince(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

// What a pass of a layer may take on a device at most.
constexpr absl::Duration kPassTime = absl::Minutes(1);
constexpr int64_t kPieceValues = 7 << 14;  // of what a tensor is filled with at once

// Buffers beside the layer's own: input, output and their gradients, and what backward needs.
int64_t BoundaryBytesOf(const StageShape& layer) {
  return AlignUp(layer.layout().activation_bytes * layer.largest.tokens() * layer.model.width);
}

// Never none: an embedding keeps nothing.
int64_t KeptBytes(const StageShape& layer) {
  return std::max(AlignUp(WorkingSetBytes(layer)), kAlignment);
}

StageBytes Needed(const StageShape& layer) {
  StageBytes bytes = StageMemory(layer, {});
  bytes.optimizer = 0;
  bytes.link = 0;
  bytes.stash = 4 * BoundaryBytesOf(layer) + KeptBytes(layer) + AlignUp(4 * layer.largest.tokens());
  return bytes;
}

class TimedLayer {
 public:
  static absl::StatusOr<std::unique_ptr<TimedLayer>> Create(const StageShape& layer,
                                                            const DeviceOpener& open) {
    std::unique_ptr<TimedLayer> timed(new TimedLayer(layer));
    HEADRACE_RETURN_IF_ERROR(timed->Carve(open));
    return timed;
  }

  // Adds nothing to `*least` that is not less. CANCELLED as TimeLayer.
  absl::Status Round(const std::atomic<bool>& cancelled, v1::LayerSeconds* least) {
    HEADRACE_ASSIGN_OR_RETURN(const double forward,
                              Time([&] { model_->Forward(mb_, input_, output_, kept_); }));
    if (cancelled) return absl::CancelledError("the measurement was cancelled");
    HEADRACE_ASSIGN_OR_RETURN(const double recompute,
                              Time([&] { model_->Recompute(mb_, input_, kept_); }));
    if (cancelled) return absl::CancelledError("the measurement was cancelled");
    HEADRACE_ASSIGN_OR_RETURN(
        const double backward,
        Time([&] { model_->Backward(mb_, input_, kept_, output_gradient_, input_gradient_); }));
    least->set_forward_s(std::min(least->forward_s(), forward));
    least->set_recompute_s(std::min(least->recompute_s(), recompute));
    least->set_backward_s(std::min(least->backward_s(), backward));
    return absl::OkStatus();
  }

 private:
  explicit TimedLayer(const StageShape& layer) : layer_(layer) {}

  template <typename Run>
  absl::StatusOr<double> Time(const Run& run) {
    const auto start = SteadyClock::now();
    run();
    HEADRACE_RETURN_IF_ERROR(device_->Wait(kPassTime));
    return SecondsSince(start);
  }

  // Ordinary numbers around 0: what is computed from them is neither denormal nor infinite.
  absl::Status FillOrdinary(const Tensor& tensor) {
    std::vector<float> piece(
        static_cast<size_t>(std::min<int64_t>(kPieceValues, tensor.elements())));
    for (size_t i = 0; i < piece.size(); ++i) {
      piece[i] = 0.01f * static_cast<float>(static_cast<int64_t>(i % 7) - 3);
    }
    const int64_t element_bytes = ElementBytes(tensor.type);
    std::vector<uint16_t> halves;  // of a piece in bfloat16
    const void* from = piece.data();
    if (tensor.type == ElementType::kBfloat16) {
      for (const float value : piece) {
        halves.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16));
      }
      from = halves.data();
    }
    for (int64_t at = 0; at < tensor.elements(); at += kPieceValues) {
      HEADRACE_RETURN_IF_ERROR(device_->ToDevice(
          static_cast<char*>(tensor.data) + at * element_bytes, from,
          element_bytes * std::min(kPieceValues, tensor.elements() - at), "a layer's input"));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<void*> Filled(const char* name, int64_t bytes, ElementType type) {
    HEADRACE_ASSIGN_OR_RETURN(
        const Tensor tensor,
        device_->arena()->Carve(MemoryKind::kStash, name, type, {bytes / ElementBytes(type)}));
    HEADRACE_RETURN_IF_ERROR(FillOrdinary(tensor));
    return tensor.data;
  }

  absl::StatusOr<Act> Activations(const char* name) {
    const ElementType type = device_->ops()->activation_type();
    HEADRACE_ASSIGN_OR_RETURN(void* const data, Filled(name, BoundaryBytesOf(layer_), type));
    return Act(data, type);
  }

  absl::Status Carve(const DeviceOpener& open) {
    HEADRACE_ASSIGN_OR_RETURN(device_, open(NeedsOf(layer_, Needed(layer_).total())));
    HEADRACE_ASSIGN_OR_RETURN(model_, StageModel::Create(layer_, device_->arena(), device_->ops()));
    // Backward adds to gradients: the first time it would also be the system's giving their pages.
    model_->ZeroGradients();
    for (const Parameter& parameter : model_->parameters()) {
      HEADRACE_RETURN_IF_ERROR(FillOrdinary(parameter.weight));
    }
    model_->RoundWeights();
    HEADRACE_ASSIGN_OR_RETURN(const Act input, Activations("input"));
    input_ = input.data();
    HEADRACE_ASSIGN_OR_RETURN(output_, Activations("output"));
    HEADRACE_ASSIGN_OR_RETURN(output_gradient_, Activations("output gradient"));
    HEADRACE_ASSIGN_OR_RETURN(input_gradient_, Activations("input gradient"));
    HEADRACE_ASSIGN_OR_RETURN(kept_, Filled("kept", KeptBytes(layer_), ElementType::kFloat32));
    HEADRACE_ASSIGN_OR_RETURN(
        const Tensor tokens,
        device_->arena()->Carve(MemoryKind::kStash, "tokens", ElementType::kInt32,
                                {layer_.largest.tokens()}));
    std::vector<int32_t> ids(static_cast<size_t>(tokens.elements()));
    for (size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<int32_t>(static_cast<int64_t>(i) % layer_.model.vocabulary);
    }
    HEADRACE_RETURN_IF_ERROR(
        device_->ToDevice(tokens.data, ids.data(), tokens.bytes(), "a layer's tokens"));
    if (layer_.layers.front().kind == LayerKind::kEmbedding) input_ = tokens.data;
    mb_.shape = layer_.largest;
    mb_.targets = tokens.i32();
    HEADRACE_ASSIGN_OR_RETURN(loss_, DeviceNumbers::Create(device_.get(), 1, "loss"));
    mb_.loss = loss_->data();
    mb_.loss_scale = 1.0f / static_cast<float>(layer_.largest.tokens());
    return device_->Wait(kPassTime);
  }

  const StageShape layer_;
  std::unique_ptr<ComputeDevice> device_;
  std::unique_ptr<StageModel> model_;
  std::unique_ptr<DeviceNumbers> loss_;
  MicroBatch mb_;
  const void* input_ = nullptr;
  Act output_, output_gradient_, input_gradient_;
  void* kept_ = nullptr;
};

v1::LayerSeconds Longest() {
  v1::LayerSeconds longest;
  longest.set_forward_s(1e9);
  longest.set_recompute_s(1e9);
  longest.set_backward_s(1e9);
  return longest;
}

}  // namespace

int64_t TimedLayerBytes(const StageShape& layer) { return Needed(layer).total(); }

absl::StatusOr<v1::LayerSeconds> TimeLayer(const StageShape& layer,
                                           const std::atomic<bool>& cancelled,
                                           const DeviceOpener& open) {
  HEADRACE_ASSIGN_OR_RETURN(const std::unique_ptr<TimedLayer> timed,
                            TimedLayer::Create(layer, open));
  v1::LayerSeconds least = Longest();
  const auto warm_up = SteadyClock::now();
  HEADRACE_RETURN_IF_ERROR(timed->Round(cancelled, &least));
  if (SecondsSince(warm_up) > kLongSeconds) return least;
  least = Longest();
  const auto start = SteadyClock::now();
  for (int i = 0; i < kRounds && (i == 0 || SecondsSince(start) < kEnoughSeconds); ++i) {
    HEADRACE_RETURN_IF_ERROR(timed->Round(cancelled, &least));
  }
  return least;
}

}  // namespace headrace
