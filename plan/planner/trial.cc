#include "plan/planner/trial.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "common/status.h"
#include "plan/planner/schedule/schedule.h"

namespace headrace {
namespace {

// A second working set, or more micro-batches in flight, must gain this share of the step to be
// worth the memory.
constexpr double kWorthwhile = 1e-3, kLeadWorthwhile = 5e-3;
// Beyond, a link is slower than what it connects, and no lead hides that.
constexpr int64_t kMaxLead = 4;

ScheduleShape ShapeOf(const JobShape& job, int num_stages) {
  ScheduleShape shape;
  shape.stages = num_stages;
  shape.micro_batches = job.micro_batches();
  shape.recompute = job.recompute;
  return shape;
}

// The lead that hides every edge's links (one_f_one_b.h), as far as the credits go.
int LeadFor(const Trial& trial, int64_t credits) {
  double most = 0;
  for (size_t k = 0; k + 1 < trial.costs.size(); ++k) {
    const StageCosts& costs = trial.costs[k];
    const double ways_s = costs.activation_s + trial.costs[k + 1].gradient_s;
    const double work_s = costs.forward_s + costs.recompute_s + costs.backward_s;
    if (ways_s > kLeadWorthwhile * work_s) most = std::max(most, ways_s / work_s);
  }
  return 1 + static_cast<int>(
                 std::min(std::ceil(most), static_cast<double>(std::min(credits, kMaxLead) - 1)));
}

std::vector<double> Scale(const JobShape& job) {
  std::vector<double> scale;
  for (int64_t sequences : job.micro_batch_sequences) {
    scale.push_back(static_cast<double>(sequences) / static_cast<double>(job.largest.sequences));
  }
  return scale;
}

bool FitsMemory(const Partition& partition, const PartitionProblem& problem) {
  for (size_t k = 0; k < partition.cells.size(); ++k) {
    const Cell& cell = partition.cells[k];
    if (problem.costs->Bytes(static_cast<int>(k), cell.worker_class, cell.first, cell.end) >
        problem.limit_bytes[cell.worker_class]) {
      return false;
    }
  }
  return true;
}

ReplayOptions OptionsOf(const JobShape& job, std::vector<StageCosts> costs) {
  return {std::move(costs), Scale(job), static_cast<int>(job.credits)};
}

}  // namespace

absl::StatusOr<double> SecondsWithoutLinks(const JobShape& job, const Trial& trial) {
  std::vector<StageCosts> costs = trial.costs;
  for (StageCosts& each : costs) each.activation_s = each.gradient_s = 0;
  HEADRACE_ASSIGN_OR_RETURN(
      const Simulation simulation,
      Simulate(trial.schedule, job.micro_batches(), OptionsOf(job, std::move(costs))));
  return simulation.step_s;
}

std::vector<int> AssignWorkers(const Partition& partition,
                               const std::vector<WorkerClass>& classes) {
  std::vector<size_t> used(classes.size());
  std::vector<int> workers;
  for (const Cell& cell : partition.cells) {
    workers.push_back(classes[cell.worker_class].workers[used[cell.worker_class]++]);
  }
  return workers;
}

Trials::Trials(const JobShape* job, const std::vector<PlanWorker>& workers)
    : job_(job), layers_(job), classes_(GroupWorkers(workers)) {}

void Trials::Prepare(const ScheduleShape& shape, Setup* setup) {
  const int num_stages = shape.stages;
  std::vector<std::vector<StashLevel>> levels(num_stages);
  if (job_->training) {
    setup->schedule = MakeSchedule(job_->schedule, shape);
    for (int k = 0; k < num_stages; ++k) levels[k] = StashLevels(setup->schedule[k]);
  }
  setup->table.emplace(&layers_, &classes_, num_stages, std::move(levels));
  setup->problem.num_layers = static_cast<int>(job_->layers.size());
  setup->problem.num_stages = num_stages;
  for (const WorkerClass& c : classes_) {
    setup->problem.class_sizes.push_back(static_cast<int>(c.workers.size()));
    setup->problem.limit_bytes.push_back(c.memory_limit_bytes);
  }
  setup->problem.costs = &*setup->table;
}

absl::StatusOr<std::optional<Trial>> Trials::Try(const ScheduleShape& shape,
                                                 const Partition* known) {
  Setup setup;
  Prepare(shape, &setup);
  Trial trial;
  trial.shape = shape;
  if (known != nullptr && FitsMemory(*known, setup.problem)) {
    trial.partition = *known;
  } else {
    auto partition = FindPartition(setup.problem);
    if (!partition) return std::optional<Trial>();
    trial.partition = *std::move(partition);
  }
  trial.workers = AssignWorkers(trial.partition, classes_);
  trial.costs = CostsOf(setup, trial.partition);
  if (!job_->training) return std::optional<Trial>(std::move(trial));
  trial.schedule = std::move(setup.schedule);
  HEADRACE_ASSIGN_OR_RETURN(trial.simulation, Simulate(trial.schedule, job_->micro_batches(),
                                                       OptionsOf(*job_, trial.costs)));
  return std::optional<Trial>(std::move(trial));
}

std::vector<StageCosts> Trials::CostsOf(const Setup& setup, const Partition& partition) const {
  std::vector<StageCosts> costs;
  for (size_t k = 0; k < partition.cells.size(); ++k) {
    costs.push_back(setup.table->Costs(static_cast<int>(k), partition.cells[k]));
  }
  return costs;
}

std::optional<double> Trials::Estimate(int num_stages) {
  Setup setup;
  Prepare(ShapeOf(*job_, num_stages), &setup);
  const auto partition = FindPartition(setup.problem);
  if (!partition) return std::nullopt;
  const std::vector<double> scale = Scale(*job_);
  const double micro_batches = std::accumulate(scale.begin(), scale.end(), 0.0);
  double ways_s = 0, most_s = 0;  // through the stages before, there and back
  for (const StageCosts& costs : CostsOf(setup, *partition)) {
    const double recompute_s = job_->recompute == v1::RECOMPUTE_MODE_NEVER ? 0 : costs.recompute_s;
    const double work_s = costs.forward_s + recompute_s + costs.backward_s;
    const double busiest_s = std::max({work_s, costs.activation_s, costs.gradient_s});
    most_s = std::max(most_s, ways_s + costs.gradient_s + micro_batches * busiest_s);
    ways_s += costs.forward_s + costs.activation_s + costs.backward_s + costs.gradient_s;
  }
  return most_s;
}

absl::Status Trials::Improve(const ScheduleShape& shape, double worthwhile,
                             std::optional<Trial>* best, ScheduleShape* best_shape) {
  HEADRACE_ASSIGN_OR_RETURN(std::optional<Trial> trial, Try(shape, &(*best)->partition));
  if (trial && trial->simulation.step_s < (*best)->simulation.step_s * (1 - worthwhile)) {
    *best = std::move(trial);
    *best_shape = shape;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Trial>> Trials::Fastest(int num_stages) {
  ScheduleShape shape = ShapeOf(*job_, num_stages);
  HEADRACE_ASSIGN_OR_RETURN(std::optional<Trial> best, Try(shape, nullptr));
  if (!best || !job_->training || num_stages == 1 || job_->micro_batches() == 1) return best;
  if (job_->schedule == v1::SCHEDULE_KIND_1F1B) {
    const int lead = LeadFor(*best, job_->credits);
    for (ScheduleShape ahead = shape; ahead.lead < lead;) {
      ++ahead.lead;
      HEADRACE_RETURN_IF_ERROR(Improve(ahead, kLeadWorthwhile, &best, &shape));
    }
  }
  if (job_->recompute != v1::RECOMPUTE_MODE_NEVER) {
    ScheduleShape ahead = shape;
    ahead.extra_working_sets = 1;
    HEADRACE_RETURN_IF_ERROR(Improve(ahead, kWorthwhile, &best, &shape));
  }
  return best;
}

bool Trials::Fits(int num_stages) {
  Setup setup;
  Prepare(ShapeOf(*job_, num_stages), &setup);
  return FindAnyPartition(setup.problem, 0).has_value();
}

Misfit Trials::FindMisfit(int num_stages) {
  Setup setup;
  Prepare(ShapeOf(*job_, num_stages), &setup);
  const std::optional<Shortage> shortage = FindShortage(setup.problem);
  Misfit misfit;
  misfit.num_stages = num_stages;
  if (!shortage) return misfit;
  const std::vector<int> workers = AssignWorkers(shortage->partition, classes_);
  for (int k = 0; k < num_stages; ++k) {
    const Cell& cell = shortage->partition.cells[k];
    const WorkerClass& of = classes_[cell.worker_class];
    const auto actions = job_->training ? MakeActions(job_->schedule, ShapeOf(*job_, num_stages), k)
                                        : std::vector<Action>();
    const StageBytes needed = StageMemory(job_->Stage(k, num_stages, cell, of.compute), actions);
    const int64_t missing = needed.total() - of.memory_limit_bytes;
    if (missing > misfit.missing_bytes) {
      misfit = {num_stages, k, cell, workers[k], of.memory_limit_bytes, needed, missing};
    }
  }
  return misfit;
}

}  // namespace headrace
