// What a layer costs, measured instead of counted in FLOPs: which layers of a job are worth a
// measurement, and under which name one is kept. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "headrace/v1/job.pb.h"
#include "plan/layer_spec.h"

namespace headrace {

// Seconds of one layer, for the job's largest micro-batch, on one worker's device.
struct MeasuredCost {
  LayerKind kind = LayerKind::kEmbedding;
  double forward_s = 0;
  double recompute_s = 0;
  double backward_s = 0;  // without recompute

  friend bool operator==(const MeasuredCost&, const MeasuredCost&) = default;
};

struct DistinctLayer {
  LayerKind kind = LayerKind::kEmbedding;
  int64_t layer = 0;  // the first of its kind
  // All that its seconds depend on but the device: two jobs' layers with the same signature cost
  // the same. "gpt2 block, width 768, heads 12/12, mlp 3072, dropout 0/0 · 2 × 512 · fp32".
  std::string signature;
};

// One of each kind of layer, in layer order: layers of a kind are alike. Errors as ResolveModel and
// SplitBatch.
absl::StatusOr<std::vector<DistinctLayer>> DistinctLayers(const v1::JobSpec& spec);

// The cost of this kind, or null.
const MeasuredCost* FindCost(const std::vector<MeasuredCost>& costs, LayerKind kind);

}  // namespace headrace
