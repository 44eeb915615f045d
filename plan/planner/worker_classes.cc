#include "plan/planner/worker_classes.h"

#include <algorithm>

namespace headrace {
namespace {

constexpr double kAlike = 0.05;  // relative: as fine as measurements are

double FlopsPerSecond(const PlanWorker& worker) {
  return worker.flops_per_second > 0 ? worker.flops_per_second
                                     : kDefaultFlopsPerThread * std::max(worker.threads, 1);
}

bool Near(double a, double b) { return std::min(a, b) >= std::max(a, b) * (1 - kAlike); }

bool SimJoins(const std::optional<v1::SimDevice>& a, const std::optional<v1::SimDevice>& b) {
  if (!a || !b) return a.has_value() == b.has_value();
  return Near(a->flops_per_second(), b->flops_per_second()) &&
         Near(a->forward_s(), b->forward_s()) && Near(a->recompute_s(), b->recompute_s()) &&
         Near(a->backward_s(), b->backward_s()) && a->wire() == b->wire() &&
         Near(a->link_bytes_per_second(), b->link_bytes_per_second()) &&
         Near(a->link_latency_s(), b->link_latency_s());
}

double Seconds(const MeasuredCost& cost) {
  return cost.forward_s + cost.recompute_s + cost.backward_s;
}

// Whether two workers take as long for the job's layers.
bool AsFast(const PlanWorker& a, const PlanWorker& b) {
  if (a.measured.empty() && b.measured.empty()) {
    return Near(FlopsPerSecond(a), FlopsPerSecond(b));
  }
  if (a.measured.size() != b.measured.size()) return false;
  return std::all_of(a.measured.begin(), a.measured.end(), [&](const MeasuredCost& cost) {
    const MeasuredCost* other = FindCost(b.measured, cost.kind);
    return other != nullptr && Near(Seconds(cost), Seconds(*other));
  });
}

void SlowDown(const std::vector<MeasuredCost>& worker, std::vector<MeasuredCost>* slowest) {
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

bool Joins(const PlanWorker& worker, const PlanWorker& leader) {
  if (worker.memory_limit_bytes != leader.memory_limit_bytes ||
      worker.threads != leader.threads || worker.device != leader.device) {
    return false;
  }
  const LinkSpeed a = LinkOf(worker), b = LinkOf(leader);
  return SimJoins(worker.sim, leader.sim) && AsFast(worker, leader) &&
         Near(a.bytes_per_second, b.bytes_per_second) && Near(a.latency_s, b.latency_s);
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

}  // namespace

std::vector<WorkerClass> GroupWorkers(const std::vector<PlanWorker>& workers) {
  std::vector<WorkerClass> classes;
  for (size_t i = 0; i < workers.size(); ++i) {
    const PlanWorker& worker = workers[i];
    auto at = std::find_if(classes.begin(), classes.end(), [&](const WorkerClass& c) {
      return Joins(worker, workers[c.workers[0]]);
    });
    if (at == classes.end()) {
      classes.push_back({FlopsPerSecond(worker),
                         worker.memory_limit_bytes,
                         worker.compute(),
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
    if (worker.sim) SlowDown(*worker.sim, &*at->sim);
    SlowDown(worker.measured, &at->measured);
    at->workers.push_back(static_cast<int>(i));
  }
  return classes;
}

}  // namespace headrace
