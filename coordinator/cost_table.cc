#include "coordinator/cost_table.h"

#include "absl/strings/str_cat.h"

namespace headrace {

std::string DeviceKey(const v1::WorkerInfo& worker) {
  const std::string& name = worker.device_name();
  return absl::StrCat(name.empty() ? worker.device() : name, ", ", worker.threads(),
                      worker.threads() == 1 ? " thread, " : " threads, ", worker.version());
}

CostTable::CostTable(const std::vector<StoredLayerCost>& costs) {
  for (const StoredLayerCost& cost : costs) Add(cost);
}

void CostTable::Add(const StoredLayerCost& cost) {
  const Key key(cost.device, cost.layer);
  if (costs_.insert_or_assign(key, cost.seconds).second) oldest_first_.push_back(key);
  if (oldest_first_.size() <= size_t{JobStore::kKeptLayerCosts}) return;
  costs_.erase(oldest_first_.front());
  oldest_first_.pop_front();
}

std::vector<MeasuredCost> CostTable::Known(const v1::WorkerInfo& worker,
                                           const std::vector<DistinctLayer>& layers) const {
  std::vector<MeasuredCost> known;
  if (!worker.profiles_layers()) return known;
  const std::string device = DeviceKey(worker);
  for (const DistinctLayer& layer : layers) {
    const auto at = costs_.find(Key(device, layer.signature));
    if (at == costs_.end()) continue;
    const v1::LayerSeconds& seconds = at->second;
    known.push_back({layer.kind, seconds.forward_s(), seconds.recompute_s(), seconds.backward_s()});
  }
  return known;
}

}  // namespace headrace
