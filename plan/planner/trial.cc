#include "plan/planner/trial.h"

#include <algorithm>
#include <utility>

#include "common/status.h"
#include "plan/planner/schedule/schedule.h"

namespace headrace {
namespace {

// Of the partition's dynamic programme. Twelve different workers make 4,096.
constexpr int64_t kMaxStates = 4096;
// A second working set must gain this share of the step to be worth its memory.
constexpr double kWorthwhile = 1e-3;

ScheduleShape ShapeOf(const JobShape& job, int num_stages, int extra_working_sets) {
  return {num_stages, job.micro_batches(), job.recompute, extra_working_sets};
}

std::vector<double> Scale(const JobShape& job) {
  std::vector<double> scale;
  for (int64_t sequences : job.micro_batch_sequences) {
    scale.push_back(static_cast<double>(sequences) / static_cast<double>(job.largest.sequences));
  }
  return scale;
}

}  // namespace

std::vector<int> AssignWorkers(const Partition& partition,
                               const std::vector<WorkerClass>& classes) {
  std::vector<size_t> used(classes.size());
  std::vector<int> workers;
  for (const Cell& cell : partition.cells) {
    workers.push_back(classes[cell.worker_class].workers[used[cell.worker_class]++]);
  }
  return workers;
}

Trials::Trials(const JobShape* job, const std::vector<PlanWorker>* workers)
    : job_(job), workers_(workers), layers_(job) {}

void Trials::Prepare(int num_stages, int extra_working_sets, Setup* setup) {
  setup->classes = GroupWorkers(*workers_, num_stages, kMaxStates);
  std::vector<std::vector<StashLevel>> levels(num_stages);
  for (int k = 0; job_->training && k < num_stages; ++k) {
    const ScheduleShape shape = ShapeOf(*job_, num_stages, extra_working_sets);
    levels[k] = StashLevels(MakeActions(job_->schedule, shape, k));
  }
  setup->table.emplace(&layers_, &setup->classes, num_stages, std::move(levels));
  setup->problem.num_layers = static_cast<int>(job_->layers.size());
  setup->problem.num_stages = num_stages;
  for (const WorkerClass& c : setup->classes) {
    setup->problem.class_sizes.push_back(static_cast<int>(c.workers.size()));
    setup->problem.limit_bytes.push_back(c.memory_limit_bytes);
  }
  setup->problem.costs = &*setup->table;
}

absl::StatusOr<std::optional<Trial>> Trials::Try(int num_stages, int extra_working_sets) {
  Setup setup;
  Prepare(num_stages, extra_working_sets, &setup);
  auto partition = FindPartition(setup.problem);
  if (!partition) return std::optional<Trial>();
  Trial trial;
  trial.partition = *std::move(partition);
  trial.workers = AssignWorkers(trial.partition, setup.classes);
  for (int k = 0; k < num_stages; ++k) {
    trial.costs.push_back(setup.table->Costs(k, trial.partition.cells[k]));
  }
  if (!job_->training) return std::optional<Trial>(std::move(trial));
  trial.schedule = MakeSchedule(job_->schedule, ShapeOf(*job_, num_stages, extra_working_sets));
  const ReplayOptions options = {trial.costs, Scale(*job_), static_cast<int>(job_->credits)};
  HEADRACE_ASSIGN_OR_RETURN(trial.simulation,
                            Simulate(trial.schedule, job_->micro_batches(), options));
  return std::optional<Trial>(std::move(trial));
}

absl::StatusOr<std::optional<Trial>> Trials::Fastest(int num_stages) {
  HEADRACE_ASSIGN_OR_RETURN(std::optional<Trial> best, Try(num_stages, 0));
  const bool can_run_ahead = job_->training && num_stages > 1 && job_->micro_batches() > 1 &&
                             job_->recompute != v1::RECOMPUTE_MODE_NEVER;
  if (!best || !can_run_ahead) return best;
  HEADRACE_ASSIGN_OR_RETURN(std::optional<Trial> ahead, Try(num_stages, 1));
  if (ahead && ahead->simulation.step_s < best->simulation.step_s * (1 - kWorthwhile)) {
    return ahead;
  }
  return best;
}

bool Trials::Fits(int num_stages) {
  Setup setup;
  Prepare(num_stages, 0, &setup);
  return FindAnyPartition(setup.problem, 0).has_value();
}

Misfit Trials::FindMisfit(int num_stages) {
  Setup setup;
  Prepare(num_stages, 0, &setup);
  const std::optional<Shortage> shortage = FindShortage(setup.problem);
  Misfit misfit;
  misfit.num_stages = num_stages;
  if (!shortage) return misfit;
  const std::vector<int> workers = AssignWorkers(shortage->partition, setup.classes);
  for (int k = 0; k < num_stages; ++k) {
    const Cell& cell = shortage->partition.cells[k];
    const WorkerClass& of = setup.classes[cell.worker_class];
    const auto actions = job_->training
                             ? MakeActions(job_->schedule, ShapeOf(*job_, num_stages, 0), k)
                             : std::vector<Action>();
    const StageBytes needed = StageMemory(job_->Stage(k, num_stages, cell, of.threads), actions);
    const int64_t missing = needed.total() - of.memory_limit_bytes;
    if (missing > misfit.missing_bytes) {
      misfit = {num_stages, k, cell, workers[k], of.memory_limit_bytes, needed, missing};
    }
  }
  return misfit;
}

}  // namespace headrace
