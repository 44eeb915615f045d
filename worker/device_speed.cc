#include "worker/device_speed.h"

#include <atomic>

#include "common/status.h"
#include "worker/layer_timer.h"

namespace headrace {
namespace {

constexpr double kShortSeconds = 0.005;  // a pass this short says little: try a larger one

struct Size {
  int64_t width, length;
};
constexpr Size kSizes[] = {{64, 16}, {768, 512}, {2048, 2048}};

StageShape Block(const Size& size, bool bf16) {
  StageShape shape;
  Model& m = shape.model;
  m.family = ModelFamily::kGpt2;
  m.layers = 1;
  m.width = size.width;
  m.head_size = 64;
  m.heads = m.kv_heads = size.width / m.head_size;
  m.mlp_width = 4 * size.width;
  m.context = size.length;
  m.vocabulary = 64;
  shape.layers = {BuildLayers(m)[1]};
  shape.stage = 1;
  shape.num_stages = 3;
  shape.largest = {1, size.length};
  shape.optimizer_moments = 0;
  shape.precision = bf16 ? Precision::kBf16 : Precision::kFp32;
  shape.device = DeviceKind::kCuda;
  return shape;
}

}  // namespace

absl::StatusOr<double> MeasureCudaFlops(const DeviceOpener& open, bool bf16) {
  const std::atomic<bool> cancelled = false;
  double flops_per_second = 0;
  for (const Size& size : kSizes) {
    const StageShape shape = Block(size, bf16);
    HEADRACE_ASSIGN_OR_RETURN(const v1::LayerSeconds seconds, TimeLayer(shape, cancelled, open));
    const LayerSpec& layer = shape.layers.front();
    const double passed_s = seconds.forward_s() + seconds.backward_s();
    flops_per_second = (ForwardFlops(shape.model, layer, shape.largest) +
                        BackwardFlops(shape.model, layer, shape.largest)) /
                       passed_s;
    if (passed_s > kShortSeconds) break;
  }
  return flops_per_second;
}

}  // namespace headrace
