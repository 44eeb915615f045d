#include "plan/planner/worker_classes.h"

#include <algorithm>

#include "plan/planner/partition.h"

namespace headrace {
namespace {

struct Tolerance {
  double speed, memory;  // relative
  bool threads;          // unequal ones may join
};

// From as fine as measurements are to one class for all.
constexpr Tolerance kTolerances[] = {
    {0.05, 0, false}, {0.05, 0.02, false}, {0.15, 0.1, true}, {0.4, 0.3, true}, {1, 1, true}};

double FlopsPerSecond(const PlanWorker& worker) {
  return worker.flops_per_second > 0 ? worker.flops_per_second
                                     : kDefaultFlopsPerThread * std::max(worker.threads, 1);
}

bool Near(double a, double b, double share) {
  return std::min(a, b) >= std::max(a, b) * (1 - share);
}

bool SimJoins(const std::optional<v1::SimDevice>& a, const std::optional<v1::SimDevice>& b,
              double share) {
  if (!a || !b) return a.has_value() == b.has_value();
  return Near(a->flops_per_second(), b->flops_per_second(), share) &&
         Near(a->forward_s(), b->forward_s(), share) &&
         Near(a->recompute_s(), b->recompute_s(), share) &&
         Near(a->backward_s(), b->backward_s(), share) && a->wire() == b->wire() &&
         Near(a->link_bytes_per_second(), b->link_bytes_per_second(), share) &&
         Near(a->link_latency_s(), b->link_latency_s(), share);
}

double Seconds(const MeasuredCost& cost) {
  return cost.forward_s + cost.recompute_s + cost.backward_s;
}

// Whether two workers take as long for the job's layers.
bool AsFast(const PlanWorker& a, const PlanWorker& b, double share) {
  if (a.measured.empty() && b.measured.empty()) {
    return Near(FlopsPerSecond(a), FlopsPerSecond(b), share);
  }
  if (a.measured.size() != b.measured.size()) return share >= 1;
  return std::all_of(a.measured.begin(), a.measured.end(), [&](const MeasuredCost& cost) {
    const MeasuredCost* other = FindCost(b.measured, cost.kind);
    return other != nullptr ? Near(Seconds(cost), Seconds(*other), share) : share >= 1;
  });
}

void SlowDown(const std::vector<MeasuredCost>& worker, std::vector<MeasuredCost>* slowest) {
  std::erase_if(*slowest, [&](const MeasuredCost& cost) { return !FindCost(worker, cost.kind); });
  for (MeasuredCost& cost : *slowest) {
    const MeasuredCost& other = *FindCost(worker, cost.kind);
    cost.forward_s = std::max(cost.forward_s, other.forward_s);
    cost.recompute_s = std::max(cost.recompute_s, other.recompute_s);
    cost.backward_s = std::max(cost.backward_s, other.backward_s);
  }
}

LinkSpeed LinkOf(const PlanWorker& worker) {
  return worker.link.bytes_per_second > 0 ? worker.link
                                          : LinkSpeed{kLinkBytesPerSecond, kLinkLatencyS};
}

bool Joins(const PlanWorker& worker, const PlanWorker& leader, const Tolerance& tolerance) {
  const LinkSpeed a = LinkOf(worker), b = LinkOf(leader);
  return SimJoins(worker.sim, leader.sim, tolerance.speed) &&
         AsFast(worker, leader, tolerance.speed) &&
         Near(a.bytes_per_second, b.bytes_per_second, tolerance.speed) &&
         Near(a.latency_s, b.latency_s, tolerance.speed) &&
         Near(static_cast<double>(worker.memory_limit_bytes),
              static_cast<double>(leader.memory_limit_bytes), tolerance.memory) &&
         (tolerance.threads || worker.threads == leader.threads);
}

// 0 is none declared, or no limit.
double Slower(double a, double b) { return a > 0 && b > 0 ? std::min(a, b) : std::max(a, b); }

void SlowDown(const v1::SimDevice& worker, v1::SimDevice* slowest) {
  slowest->set_flops_per_second(Slower(slowest->flops_per_second(), worker.flops_per_second()));
  slowest->set_forward_s(std::max(slowest->forward_s(), worker.forward_s()));
  slowest->set_recompute_s(std::max(slowest->recompute_s(), worker.recompute_s()));
  slowest->set_backward_s(std::max(slowest->backward_s(), worker.backward_s()));
  slowest->set_link_bytes_per_second(
      Slower(slowest->link_bytes_per_second(), worker.link_bytes_per_second()));
  slowest->set_link_latency_s(std::max(slowest->link_latency_s(), worker.link_latency_s()));
}

std::vector<WorkerClass> Group(const std::vector<PlanWorker>& workers, const Tolerance& tolerance) {
  std::vector<WorkerClass> classes;
  for (size_t i = 0; i < workers.size(); ++i) {
    const PlanWorker& worker = workers[i];
    auto at = std::find_if(classes.begin(), classes.end(), [&](const WorkerClass& c) {
      return Joins(worker, workers[c.workers[0]], tolerance);
    });
    if (at == classes.end()) {
      classes.push_back({FlopsPerSecond(worker),
                         worker.memory_limit_bytes,
                         worker.threads,
                         {},
                         worker.sim,
                         worker.measured});
      at = classes.end() - 1;
      at->link = LinkOf(worker);
    }
    const LinkSpeed link = LinkOf(worker);
    at->link.bytes_per_second = std::min(at->link.bytes_per_second, link.bytes_per_second);
    at->link.latency_s = std::max(at->link.latency_s, link.latency_s);
    at->flops_per_second = std::min(at->flops_per_second, FlopsPerSecond(worker));
    at->memory_limit_bytes = std::min(at->memory_limit_bytes, worker.memory_limit_bytes);
    if (worker.sim) SlowDown(*worker.sim, &*at->sim);
    SlowDown(worker.measured, &at->measured);
    at->threads = std::max(at->threads, worker.threads);  // more threads need more workspace
    at->workers.push_back(static_cast<int>(i));
  }
  return classes;
}

}  // namespace

std::vector<WorkerClass> GroupWorkers(const std::vector<PlanWorker>& workers, int num_stages,
                                      int64_t max_states) {
  std::vector<WorkerClass> classes;
  for (const Tolerance& tolerance : kTolerances) {
    classes = Group(workers, tolerance);
    std::vector<int> sizes;
    for (const WorkerClass& c : classes) sizes.push_back(static_cast<int>(c.workers.size()));
    if (PartitionStates(sizes, num_stages) <= max_states) break;
  }
  return classes;
}

}  // namespace headrace
