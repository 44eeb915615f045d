#include "plan/stage_memory.h"

#include <algorithm>

#include "plan/cuda_memory.h"

namespace headrace {

int64_t OptimizerMoments(const v1::OptimizerSpec& spec) {
  const int64_t momentum = spec.momentum() > 0 ? 1 : 0;
  switch (spec.kind()) {
    case v1::OPTIMIZER_KIND_SGD:
      return momentum;
    case v1::OPTIMIZER_KIND_RMSPROP:
      return 1 + momentum;
    default:
      return 2;
  }
}

Precision PrecisionOf(const v1::TrainingSpec& training) {
  if (training.precision() != v1::PRECISION_BF16) return Precision::kFp32;
  return training.bf16_emulate() ? Precision::kBf16Emulated : Precision::kBf16;
}

int64_t BoundaryBytes(const StageShape& shape) {
  if (shape.stage > 0) return TravelBytes(shape);
  return InputBytes(shape.model, shape.layers.front(), shape.largest);
}

int64_t OutputBoundaryBytes(const StageShape& shape) {
  return shape.stage < shape.num_stages - 1 ? TravelBytes(shape) : 0;
}

int64_t TravelBytes(const StageShape& shape) {
  const int64_t element_bytes = shape.bf16_boundaries ? 2 : 4;
  return AlignUp(element_bytes * shape.largest.tokens() * shape.model.width);
}

int64_t ConversionBuffers(const StageShape& shape) {
  int64_t buffers = 0;
  if (shape.stage > 0) buffers += shape.training ? 2 : 1;
  if (shape.stage < shape.num_stages - 1) ++buffers;
  return buffers;
}

int64_t ConversionBufferBytes(const StageShape& shape) {
  const int64_t element_bytes = shape.layout().activation_bytes;
  if (element_bytes == (shape.bf16_boundaries ? 2 : 4)) return 0;
  return AlignUp(element_bytes * shape.largest.tokens() * shape.model.width);
}

int64_t ConversionBytes(const StageShape& shape) {
  return ConversionBuffers(shape) * ConversionBufferBytes(shape);
}

int64_t DeviceBytes(const StageShape& shape) {
  if (shape.device == DeviceKind::kCpu) return PanelBytes(shape.precision, shape.threads);
  return kCudaProductBytes + CudaScratchBytes(shape) + CudaTransferBytes(shape) +
         (shape.training ? CudaNormBytes(OwnParameters(shape.layers)) : 0);
}

int64_t WorkingSetBytes(const StageShape& shape) {
  const Layout on = shape.layout();
  int64_t bytes = 0;
  for (size_t i = 0; i < shape.layers.size(); ++i) {
    bytes += SavedBytes(shape.model, shape.layers[i], shape.largest, on);
    if (i + 1 < shape.layers.size()) {
      bytes += OutputBytes(shape.model, shape.layers[i], shape.largest, on);
    }
  }
  return bytes;
}

std::vector<StashLevel> StashLevels(const std::vector<Action>& actions) {
  int last = -1;
  for (const Action& action : actions) last = std::max(last, action.micro_batch);
  std::vector<bool> recomputed(last + 1);
  for (const Action& action : actions) {
    if (action.kind == ActionKind::kRecompute) recomputed[action.micro_batch] = true;
  }
  // [b]: working sets held at most at once with b boundaries; −1: never so many. Lists may be
  // millions of actions long, and there is one a stage.
  std::vector<int64_t> most;
  StashLevel now;
  for (const Action& action : actions) {
    switch (action.kind) {
      case ActionKind::kForward:
        ++now.boundaries;
        if (!recomputed[action.micro_batch]) ++now.working_sets;
        break;
      case ActionKind::kRecompute:
        ++now.working_sets;
        break;
      case ActionKind::kBackward:
        --now.boundaries;
        --now.working_sets;
        continue;
    }
    if (now.boundaries >= static_cast<int64_t>(most.size())) most.resize(now.boundaries + 1, -1);
    most[now.boundaries] = std::max(most[now.boundaries], now.working_sets);
  }
  std::vector<StashLevel> levels;  // from most boundaries down, each with more working sets
  for (int64_t boundaries = static_cast<int64_t>(most.size()) - 1; boundaries >= 0; --boundaries) {
    const int64_t working_sets = most[boundaries];
    if (working_sets >= 0 && (levels.empty() || working_sets > levels.back().working_sets)) {
      levels.push_back({boundaries, working_sets});
    }
  }
  std::reverse(levels.begin(), levels.end());
  return levels;
}

StashPeak PeakStash(const StageShape& shape, const std::vector<Action>& actions) {
  const int64_t boundary = BoundaryBytes(shape);
  const int64_t working_set = WorkingSetBytes(shape);
  StashPeak peak;
  for (const StashLevel& level : StashLevels(actions)) {
    peak.boundaries = std::max(peak.boundaries, level.boundaries);
    peak.working_sets = std::max(peak.working_sets, level.working_sets);
    peak.bytes =
        std::max(peak.bytes, level.boundaries * boundary + level.working_sets * working_set);
  }
  return peak;
}

int64_t LinkBytes(const StageShape& shape, int64_t input_bytes, int64_t output_bytes) {
  const bool first = shape.stage == 0;
  const bool last = shape.stage == shape.num_stages - 1;
  const int64_t in_flight = shape.credits;
  const int64_t sending = shape.credits + 1;
  int64_t bytes = 0;
  if (!first) bytes += (in_flight + (shape.training ? sending : 0)) * input_bytes;
  if (!last) bytes += (sending + (shape.training ? sending : 0)) * output_bytes;
  if (shape.training && shape.model.tied && first != last) {
    bytes += AlignUp(4 * shape.model.vocabulary * shape.model.width);
  }
  return bytes;
}

StageBytes StageMemory(const StageShape& shape, const std::vector<Action>& actions) {
  StageBytes bytes;
  bytes.weights = WeightBytes(shape.model, shape.layers, shape.layout());
  if (shape.training) {
    bytes.gradients = GradientBytes(shape.layers);
    bytes.optimizer = OptimizerBytes(shape.layers, shape.optimizer_moments);
  }
  bytes.stash = shape.training ? PeakStash(shape, actions).bytes : BoundaryBytes(shape);
  bytes.workspace = StageWorkspaceBytes(shape.model, shape.layers, shape.largest, shape.layout(),
                                        shape.training, shape.recomputes) +
                    ConversionBytes(shape) + DeviceBytes(shape);
  bytes.link = LinkBytes(shape, BoundaryBytes(shape), OutputBoundaryBytes(shape));
  return bytes;
}

}  // namespace headrace
