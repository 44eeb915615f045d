// Turns a job into a plan: which worker holds which layers, in which order it does what, how much
// memory that takes and how long a step will last. Pure: no I/O, no threads, no clock.
//
//   JobSpec ─▶ layers ─▶ schedule ─▶ partition ─▶ simulate ─▶ Plan
//
// The schedule comes first, for a stage's memory depends on its place in the pipeline; the
// partition then gives each stage its layers and its worker; the simulator tells what that is
// worth. `auto` stages do this for every number of stages and keep the fastest plan; of more than
// 32 numbers, for those that promise most (stage_search.h). Partitions are exact but for many
// unlike workers (partition.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/flags.h"
#include "headrace/v1/job.pb.h"
#include "plan/device_kind.h"
#include "plan/layer_cost.h"

namespace headrace {

// What a worker computes with, as far as memory depends on it.
struct Compute {
  int threads = 1;
  DeviceKind device = DeviceKind::kCpu;
};

struct PlanWorker {
  std::string name;
  double flops_per_second = 0;     // 0: not measured, 50 GFLOP/s a thread are assumed
  int64_t memory_limit_bytes = 0;  // for one stage, all kinds together
  int threads = 1;
  bool bf16 = true;                       // its device multiplies bf16
  std::optional<v1::SimDevice> sim = {};  // a simulated worker: its actions take what it declares
  // Of the job's layers, as far as they were measured on such a device; FLOPs tell the others.
  std::vector<MeasuredCost> measured = {};
  std::string host{};   // equal: may share memory (HostInfo.id); empty: not known
  LinkSpeed link = {};  // of what it sends; not said: 10 Gbit/s and 0.2 ms
  DeviceKind device = DeviceKind::kCpu;

  Compute compute() const { return {threads, device}; }
};

enum class Advice { kGiven, kNone };

// Plans training on some of `workers`, given in order of preference among equals. `dataset` may be
// null (not known yet). Every field of the plan is filled in; its grid is empty where it would be
// too large to read. The plan fits: each stage's memory is within its worker's limit, and the
// schedule runs with the job's credits.
//   INVALID_ARGUMENT     the spec is wrong (ValidateJob), or has more stages than layers
//   UNAVAILABLE          too few workers ("needs 4 workers, has 2"): the job can wait for more
//   FAILED_PRECONDITION  precision bf16 without emulation, and too few of the workers have it:
//   names
//                        those that have not
//   FAILED_PRECONDITION  does not fit these workers: names the stage, its bytes and what is
//                        missing, and, where `advice` is given, what would make it fit, each tried
//                        by planning again
//   FAILED_PRECONDITION  the job's transport is shm, and no host has workers enough: names two of
//                        different hosts
absl::StatusOr<v1::Plan> PlanJob(const v1::JobSpec& spec, const v1::Dataset* dataset,
                                 const std::vector<PlanWorker>& workers,
                                 Advice advice = Advice::kGiven);

// Plans `generate` through a job's trained weights: as few stages as fit, forward only, one
// micro-batch of one sequence of up to the model's context. The stages' actions and the grid are
// empty. Errors as PlanJob; `spec` must have passed ValidateJob.
absl::StatusOr<v1::Plan> PlanGenerate(const v1::JobSpec& spec,
                                      const std::vector<PlanWorker>& workers);

}  // namespace headrace
