// What layers cost on the devices of this cluster, as far as it was measured. Pure.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/store/job_store.h"
#include "headrace/v1/cluster.pb.h"
#include "plan/layer_cost.h"

namespace headrace {

// Workers with the same key take the same time for a layer: "AMD EPYC 9654, 1 thread, 0.1.0" (the
// version, for another one computes otherwise).
std::string DeviceKey(const v1::WorkerInfo& worker);

class CostTable {
 public:
  CostTable() = default;
  explicit CostTable(const std::vector<StoredLayerCost>& costs);

  // Replaces what was known; forgets the oldest beyond JobStore::kKeptLayerCosts.
  void Add(const StoredLayerCost& cost);

  // Those of `layers` that are known on the worker's device. None for a worker that does not
  // measure: it declares its speed.
  std::vector<MeasuredCost> Known(const v1::WorkerInfo& worker,
                                  const std::vector<DistinctLayer>& layers) const;

 private:
  using Key = std::pair<std::string, std::string>;  // device, layer
  std::map<Key, v1::LayerSeconds> costs_;
  std::deque<Key> oldest_first_;
};

}  // namespace headrace
