#include "plan/planner/planner.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status.h"
#include "plan/job_check.h"
#include "plan/planner/advice.h"
#include "plan/planner/link_advice.h"
#include "plan/planner/stage_search.h"
#include "plan/planner/trial.h"

namespace headrace {
namespace {

// A grid beyond this is no longer read, and would fill messages.
constexpr size_t kMaxGridCells = 10'000;
// Workers an error names.
constexpr size_t kMostNames = 8;

absl::Status TooFewWorkers(int64_t needed, size_t has) {
  return absl::UnavailableError(
      absl::StrCat("needs ", needed, needed == 1 ? " worker" : " workers", ", has ", has));
}

// "w1, w2 and 3 others have not"
std::string HaveNot(std::vector<std::string> names) {
  const size_t more = names.size() - std::min(names.size(), kMostNames);
  names.resize(names.size() - more);
  return absl::StrCat(absl::StrJoin(names, ", "),
                      more > 0 ? absl::StrCat(" and ", more, " others") : "",
                      names.size() == 1 ? " has not" : " have not");
}

// Those of `workers` that can compute the job's model in its precision, if that are `needed`.
absl::StatusOr<std::vector<PlanWorker>> Capable(const JobShape& job, int64_t needed,
                                                const std::vector<PlanWorker>& workers) {
  if (static_cast<int64_t>(workers.size()) < needed) return TooFewWorkers(needed, workers.size());
  const bool any_cuda = std::any_of(workers.begin(), workers.end(), [](const PlanWorker& w) {
    return w.device == DeviceKind::kCuda;
  });
  if (job.tf32 && !any_cuda) {
    return absl::FailedPreconditionError(
        "training.tf32 is of CUDA devices, and no worker has one: leave it out");
  }
  const std::string needs = absl::StrCat(needed, needed == 1 ? " worker" : " workers");
  std::vector<PlanWorker> capable;
  std::vector<std::string> no_bf16, no_head;
  for (const PlanWorker& worker : workers) {
    if (job.precision == Precision::kBf16 && !worker.bf16) {
      no_bf16.push_back(worker.name);
    } else if (worker.device == DeviceKind::kCuda && job.model.head_size > kLargestCudaHead) {
      no_head.push_back(worker.name);
    } else {
      capable.push_back(worker);
    }
  }
  if (static_cast<int64_t>(capable.size()) >= needed) return capable;
  if (!no_head.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "attention heads of ", job.model.head_size, " need ", needs,
        " that compute on a CPU, since CUDA devices have kernels for heads of at most ",
        kLargestCudaHead, "; has ", capable.size(), ": ", HaveNot(no_head)));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "precision bf16 needs ", needs,
      " whose device multiplies bf16 (CPUs: avx512_bf16; CUDA: compute capability 8.0), has ",
      capable.size(), ": ", HaveNot(no_bf16),
      "; training.bf16_emulate: true computes it on any CPU, slowly"));
}

void FillMemory(const StageBytes& bytes, v1::MemoryBytes* memory) {
  memory->set_weights(bytes.weights);
  memory->set_gradients(bytes.gradients);
  memory->set_optimizer(bytes.optimizer);
  memory->set_stash(bytes.stash);
  memory->set_workspace(bytes.workspace);
  memory->set_link(bytes.link);
}

std::string Grid(const Schedule& schedule) {
  size_t cells = 0;
  for (const auto& actions : schedule) cells += actions.size();
  return cells > kMaxGridCells ? "" : DrawGrid(schedule);
}

// By the worker's own measurements; its class's are those of all its members.
v1::CostSource SourceOf(const JobShape& job, const Cell& cell, const PlanWorker& worker) {
  if (worker.sim) return v1::COST_SOURCE_UNSPECIFIED;  // its seconds are declared
  int measured = 0;
  for (int i = cell.first; i < cell.end; ++i) {
    measured += FindCost(worker.measured, job.layers[i].kind) != nullptr ? 1 : 0;
  }
  if (measured == 0) return v1::COST_SOURCE_FLOPS;
  return measured == cell.end - cell.first ? v1::COST_SOURCE_MEASURED : v1::COST_SOURCE_MIXED;
}

void FillStage(const JobShape& job, const std::vector<PlanWorker>& workers, const Trial& trial,
               int stage, v1::StagePlan* out) {
  const int num_stages = static_cast<int>(trial.partition.cells.size());
  const Cell& cell = trial.partition.cells[stage];
  const PlanWorker& worker = workers[trial.workers[stage]];
  const std::vector<Action> actions =
      trial.schedule.empty() ? std::vector<Action>() : trial.schedule[stage];
  out->set_stage(stage);
  out->set_first_layer(cell.first);
  out->set_end_layer(cell.end);
  out->set_worker(worker.name);
  out->set_actions(ToText(actions));
  FillMemory(StageMemory(job.Stage(stage, num_stages, cell, worker.compute()), actions),
             out->mutable_memory());
  out->set_memory_limit_bytes(worker.memory_limit_bytes);
  if (worker.sim) *out->mutable_sim() = *worker.sim;
  if (worker.device == DeviceKind::kCuda) out->set_device("cuda");
  out->set_forward_s(trial.costs[stage].forward_s);
  out->set_backward_s(trial.costs[stage].backward_s);
  out->set_cost_source(SourceOf(job, cell, worker));
  out->set_recompute_s(trial.costs[stage].recompute_s);
  out->set_activation_s(trial.costs[stage].activation_s);
  out->set_gradient_s(trial.costs[stage].gradient_s);
  int64_t parameters = 0;
  for (int i = cell.first; i < cell.end; ++i) parameters += job.layers[i].parameter_elements();
  out->set_parameters(parameters);
}

v1::Plan Write(const JobShape& job, const std::vector<PlanWorker>& workers, const Trial& trial) {
  v1::Plan plan;
  const int num_stages = static_cast<int>(trial.partition.cells.size());
  plan.set_stages(num_stages);
  plan.set_micro_batches(job.micro_batches());
  plan.set_schedule(job.schedule);
  plan.set_recompute(job.recompute);
  plan.set_precision(job.precision == Precision::kFp32 ? v1::PRECISION_FP32 : v1::PRECISION_BF16);
  plan.set_bf16_emulate(job.precision == Precision::kBf16Emulated);
  plan.set_tf32(job.tf32);
  for (const int64_t sequences : job.micro_batch_sequences) {
    plan.add_micro_batch_sequences(sequences);
  }
  int64_t parameters = 0;
  for (int k = 0; k < num_stages; ++k) {
    FillStage(job, workers, trial, k, plan.add_stage());
    parameters += plan.stage(k).parameters();
  }
  plan.set_step_s(trial.simulation.step_s);
  plan.set_bubble(trial.simulation.bubble);
  plan.set_ideal_bubble(static_cast<double>(num_stages - 1) /
                        (job.micro_batches() + num_stages - 1));
  plan.set_grid(Grid(trial.schedule));
  plan.set_parameters(parameters);
  if (job.training) {
    plan.set_boundary_dtype(job.bf16_boundaries ? v1::BOUNDARY_DTYPE_BF16
                                                : v1::BOUNDARY_DTYPE_FP32);
  }
  for (const LayerSpec& layer : job.layers) plan.add_layer_names(layer.name);
  return plan;
}

using PlanOn = std::function<absl::StatusOr<v1::Plan>(const std::vector<PlanWorker>&)>;

std::string NameOf(v1::Transport transport) {
  return transport == v1::TRANSPORT_SHM        ? "shm"
         : transport == v1::TRANSPORT_CUDA_IPC ? "cuda_ipc"
                                               : "nccl";
}

// Workers of different hosts, the first of which has the most.
absl::Status NotOnOneHost(v1::Transport transport, const std::vector<PlanWorker>& most,
                          const PlanWorker& other) {
  return absl::FailedPreconditionError(absl::StrCat(
      "pipeline.transport: ", NameOf(transport), ", but no host has workers enough: worker ",
      most.front().name, " (one of ", most.size(), " on its host) and worker ", other.name, " ",
      other.host.empty() ? "do not tell that they share one" : "are on different hosts",
      "; start more workers on one host, or say auto"));
}

// Those that may serve stages which send one another tensors by `transport`.
absl::StatusOr<std::vector<PlanWorker>> Linkable(v1::Transport transport, size_t stages,
                                                 const std::vector<PlanWorker>& workers) {
  std::vector<PlanWorker> linkable, others;
  for (const PlanWorker& worker : workers) {
    (worker.device == DeviceKind::kCuda ? linkable : others).push_back(worker);
  }
  if (linkable.size() >= stages) return linkable;
  return absl::FailedPreconditionError(absl::StrCat(
      "pipeline.transport: ", NameOf(transport), " is for CUDA devices: it needs ", stages,
      stages == 1 ? " worker" : " workers", " with one, has ", linkable.size(),
      others.empty() ? "" : absl::StrCat("; worker ", others.front().name, " has none"),
      "; say auto"));
}

// With transport shm or cuda_ipc all stages are on one host: the fastest plan over the hosts.
// Workers of unknown hosts are taken for one host's: they are what a user asks about, not what
// there is.
absl::StatusOr<v1::Plan> PlanOnHosts(const v1::JobSpec& spec, size_t stages,
                                     const std::vector<PlanWorker>& all, const PlanOn& plan) {
  const v1::Transport transport = spec.pipeline().transport();
  std::vector<PlanWorker> workers = all;
  const bool by_device = transport == v1::TRANSPORT_CUDA_IPC || transport == v1::TRANSPORT_NCCL;
  if (by_device && spec.pipeline().stages() != 1) {
    HEADRACE_ASSIGN_OR_RETURN(workers, Linkable(transport, stages, all));
  }
  const bool on_one_host = transport == v1::TRANSPORT_SHM || transport == v1::TRANSPORT_CUDA_IPC;
  std::map<std::string, std::vector<PlanWorker>> hosts;
  for (const PlanWorker& worker : workers) hosts[worker.host].push_back(worker);
  if (!on_one_host || hosts.size() < 2) return plan(workers);
  absl::StatusOr<v1::Plan> best = absl::NotFoundError("");
  const std::vector<PlanWorker>* most = nullptr;
  for (const auto& [host, there] : hosts) {
    if (most == nullptr || there.size() > most->size()) most = &there;
    if (there.size() < stages || (host.empty() && stages > 1)) continue;
    absl::StatusOr<v1::Plan> planned = plan(there);
    const bool better = planned.ok() && (!best.ok() || planned->step_s() < best->step_s());
    if (better || (!best.ok() && !planned.ok())) best = std::move(planned);
  }
  if (!absl::IsNotFound(best.status())) return best;
  const auto other = std::find_if(workers.begin(), workers.end(), [most](const PlanWorker& worker) {
    return worker.host != most->front().host;
  });
  return NotOnOneHost(transport, *most, *other);
}

}  // namespace

absl::StatusOr<v1::Plan> PlanJob(const v1::JobSpec& spec, const v1::Dataset* dataset,
                                 const std::vector<PlanWorker>& all, Advice advice) {
  HEADRACE_RETURN_IF_ERROR(ValidateJob(spec, dataset));
  HEADRACE_ASSIGN_OR_RETURN(const JobShape job, ResolveTraining(spec));
  const int64_t stages = spec.pipeline().stages();
  const int first = std::max(static_cast<int>(stages), 1);
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<PlanWorker> workers, Capable(job, first, all));
  const auto plan = [&](const std::vector<PlanWorker>& on) -> absl::StatusOr<v1::Plan> {
    const int last = stages > 0 ? first : static_cast<int>(std::min(on.size(), job.layers.size()));
    HEADRACE_ASSIGN_OR_RETURN(const std::optional<Trial> best, FindFastest(job, on, first, last));
    if (!best) return ExplainMisfit(spec, job, on, advice);
    v1::Plan written = Write(job, on, *best);
    HEADRACE_RETURN_IF_ERROR(AdviseOnLinks(job, on, *best, advice, &written));
    return written;
  };
  return PlanOnHosts(spec, static_cast<size_t>(first), workers, plan);
}

absl::StatusOr<v1::Plan> PlanGenerate(const v1::JobSpec& spec, const std::vector<PlanWorker>& all) {
  HEADRACE_ASSIGN_OR_RETURN(const JobShape job, ResolveGenerate(spec));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<PlanWorker> workers, Capable(job, 1, all));
  const auto plan = [&job](const std::vector<PlanWorker>& on) -> absl::StatusOr<v1::Plan> {
    const int last = static_cast<int>(std::min(on.size(), job.layers.size()));
    HEADRACE_ASSIGN_OR_RETURN(const std::optional<Trial> best, FindFastest(job, on, 1, last));
    if (!best) return ExplainGenerateMisfit(job, on);
    return Write(job, on, *best);
  };
  return PlanOnHosts(spec, 1, workers, plan);
}

}  // namespace headrace
