// Measures layers on workers for jobs that are about to be placed, so that the planner balances by
// seconds and not by FLOPs. Pure: what happened goes in, calls come out.
//
//   a job could be placed ─▶ Begin: is a layer's cost unknown on a kind of device that is free?
//                              │ yes: ProfileCall to one free worker of each such kind; the job
//                              waits ▼
//                            every call ended, failed or lost its worker ─▶ the job is placed
//
// Each job tries each kind of device once. What fails is logged, and FLOPs stand in for it; costs
// that were measured are kept for all later jobs.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/cost_table.h"
#include "coordinator/job_messages.h"
#include "coordinator/turn.h"
#include "coordinator/worker_table.h"
#include "plan/layer_cost.h"
#include "plan/planner/planner.h"

namespace headrace {

// Owned and called by the job machine.
class Profiling {
 public:
  // On the worker: within this it measures what it can. Longer layers are left to FLOPs.
  static constexpr absl::Duration kBudget = absl::Seconds(8);

  using LayersOf = std::function<absl::StatusOr<std::vector<DistinctLayer>>(const v1::JobSpec&)>;
  // A sentence for the log of a job.
  struct News {
    std::string job_id;
    std::string text;
  };

  explicit Profiling(LayersOf layers_of) : layers_of_(std::move(layers_of)) {}

  void Know(const std::vector<StoredLayerCost>& costs) { costs_ = CostTable(costs); }
  // Fills in what is known of this job's layers; planned[i] is workers[i].
  void FillIn(const v1::JobSpec& spec, const std::vector<v1::WorkerInfo>& workers,
              std::vector<PlanWorker>* planned) const;

  // Measures what is unknown and worth it on some of the `free` workers, which are kMeasuring from
  // then on. Their names; none: nothing is left to measure.
  std::vector<std::string> Begin(const v1::Job& job, const std::vector<v1::WorkerInfo>& free,
                                 WorkerTable* workers, Turn turn);
  bool UnderWay(const std::string& job_id) const;
  // The worker is free again, if it answered. Nothing for a call that nobody waits for any more.
  std::optional<News> OnCallEnded(const CallEnded& call, WorkerTable* workers, Turn turn);
  std::optional<News> OnWorkerLost(const std::string& worker, const std::string& reason);
  // The job needs no measurement any more: it was placed, or has ended. Calls under way are
  // cancelled.
  void Forget(const std::string& job_id, Turn turn);

 private:
  struct OpenCall {
    v1::WorkerInfo worker;
    std::vector<DistinctLayer> layers;  // asked for
  };
  struct Entry {                           // of a job
    std::set<std::string> tried;           // devices
    std::map<std::string, OpenCall> open;  // by worker
  };

  std::optional<News> Fail(Entry* entry, const std::string& job_id, const std::string& worker,
                           const std::string& why);
  std::string Keep(const OpenCall& call, const v1::ProfileLayersResponse& response, Turn turn);

  const LayersOf layers_of_;
  CostTable costs_;
  std::map<std::string, Entry> entries_;  // by job
};

}  // namespace headrace
