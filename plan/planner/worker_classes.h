// Workers as the partition sees them: classes of equals.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "plan/planner/planner.h"

namespace headrace {

// What a worker that was not measured is taken for.
inline constexpr double kDefaultFlopsPerThread = 50e9;

// What the planner takes a link for of which its owner says nothing: 10 Gbit/s.
inline constexpr double kLinkBytesPerSecond = 1.25e9;
inline constexpr double kLinkLatencyS = 2e-4;

struct WorkerClass {
  double flops_per_second = 0;  // of the slowest in it
  int64_t memory_limit_bytes = 0;
  Compute compute;
  std::vector<int> workers;               // indices in the given list, ascending
  std::optional<v1::SimDevice> sim = {};  // the slowest of what its simulated workers declare
  // Of the slowest.
  std::vector<MeasuredCost> measured = {};
  LinkSpeed link = {kLinkBytesPerSecond, kLinkLatencyS};  // of the slowest in it
};

// Workers with the same device, threads and memory whose speeds and links differ by less than 5 %, which is
// less than two measurements of one machine differ. Measured seconds of the job's layers, where
// both have them, tell more than the speed in matrix products, which then does not count.
std::vector<WorkerClass> GroupWorkers(const std::vector<PlanWorker>& workers);

}  // namespace headrace
