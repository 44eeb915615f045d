#include "worker/assignment.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/flags.h"
#include "common/sha256.h"
#include "common/status.h"
#include "plan/batch.h"
#include "plan/model.h"
#include "plan/schedule_check.h"
#include "plan/sim_device.h"
#include "worker/checkpoint/shared_folder.h"
#include "worker/pipeline/link_pools.h"

namespace headrace {
namespace {

constexpr int64_t kDefaultCredits = 2;
constexpr int64_t kDefaultEvalBatches = 4;
constexpr double kDefaultValidationSplit = 0.1;
constexpr int64_t kMaxCredits = 1024;
constexpr int64_t kMaxWaitMs = 24 * 3600 * 1000;
constexpr int64_t kMaxBlobBytes = int64_t{1} << 50;
constexpr int64_t kMax31 = std::numeric_limits<int32_t>::max();

template <typename... Args>
absl::Status Bad(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

absl::Status CheckRange(const char* what, int64_t value, int64_t min, int64_t max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return Bad(what, " is ", value, "; expected ", min, " to ", max);
}

// Stages cover the layers in order, without gap or overlap, each served by one peer.
absl::Status CheckStages(const v1::StageAssignment& assignment, const Model& model) {
  const int num_stages = assignment.plan().stage_size();
  HEADRACE_RETURN_IF_ERROR(CheckRange("the number of stages", num_stages, 1, model.layers + 2));
  HEADRACE_RETURN_IF_ERROR(CheckRange("stage", assignment.stage(), 0, num_stages - 1));
  if (assignment.peers_size() != num_stages) {
    return Bad(num_stages, " stages, but ", assignment.peers_size(), " peers");
  }
  int64_t next = 0;
  for (int k = 0; k < num_stages; ++k) {
    const v1::StagePlan& stage = assignment.plan().stage(k);
    if (stage.first_layer() != next || stage.end_layer() <= next ||
        stage.end_layer() > model.layers + 2) {
      return Bad("stage ", k, " has layers ", stage.first_layer(), " to ", stage.end_layer(),
                 "; expected it to begin at ", next, " and end by ", model.layers + 2);
    }
    next = stage.end_layer();
    if (assignment.peers(k).stage() != k || assignment.peers(k).worker().empty()) {
      return Bad("peer ", k, " is '", assignment.peers(k).worker(), "' of stage ",
                 assignment.peers(k).stage(), "; expected a worker for stage ", k);
    }
    if (num_stages > 1) HEADRACE_RETURN_IF_ERROR(CheckAddress(assignment.peers(k).address()));
  }
  if (next != model.layers + 2) {
    return Bad("the stages end at layer ", next, " of ", model.layers + 2);
  }
  return absl::OkStatus();
}

// The largest tensor of a micro-batch stays far from overflowing a byte count.
absl::Status CheckMicroBatchSize(const Model& model, int64_t sequences, int64_t length) {
  const double widest = static_cast<double>(
      std::max({8 * model.width, 4 * model.mlp_width, model.vocabulary, model.heads * length}));
  const double values = static_cast<double>(sequences) * static_cast<double>(length) * widest;
  if (values > 1e15 || sequences * length > kMax31) {
    return Bad("a micro-batch of ", sequences, " sequences of ", length,
               " tokens is too large for any worker");
  }
  return absl::OkStatus();
}

absl::Status ReadTraining(const v1::StageAssignment& assignment, StageJob* job) {
  job->training = assignment.spec().training();
  v1::TrainingSpec& training = job->training;
  HEADRACE_RETURN_IF_ERROR(CheckRange("training.steps", training.steps(), 1, kMax31));
  HEADRACE_RETURN_IF_ERROR(CheckRange("training.batch_size", training.batch_size(), 1, kMax31));
  HEADRACE_RETURN_IF_ERROR(
      CheckRange("training.micro_batches", training.micro_batches(), 1, 1 << 20));
  HEADRACE_RETURN_IF_ERROR(CheckRange("training.sequence_length", training.sequence_length(), 1,
                                      job->shape.model.context));
  HEADRACE_RETURN_IF_ERROR(CheckRange("training.eval_every", training.eval_every(), 0, kMax31));
  if (!training.has_eval_batches()) training.set_eval_batches(kDefaultEvalBatches);
  HEADRACE_RETURN_IF_ERROR(
      CheckRange("training.eval_batches", training.eval_batches(), 1, 1 << 20));
  HEADRACE_RETURN_IF_ERROR(CheckRange("micro-batches of one evaluation",
                                      training.eval_batches() * training.micro_batches(), 1,
                                      kMax31));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes,
                            SplitBatch(training.batch_size(), training.micro_batches()));
  HEADRACE_RETURN_IF_ERROR(
      CheckMicroBatchSize(job->shape.model, sizes.front(), training.sequence_length()));
  int64_t first = 0;
  for (int64_t size : sizes) {
    job->micro_batches.push_back({size, training.sequence_length()});
    job->first_sequence.push_back(first);
    first += size;
  }
  const v1::DataSpec& data = assignment.spec().data();
  const double split =
      data.has_validation_split() ? data.validation_split() : kDefaultValidationSplit;
  job->data = data;
  job->validates = training.eval_every() > 0 && split > 0;
  job->shape.largest = job->micro_batches.front();
  job->shape.micro_batches = job->num_micro_batches();
  job->shape.optimizer_moments = OptimizerMoments(training.optimizer());
  const v1::BoundaryDtype dtype = assignment.spec().pipeline().boundary_dtype();
  HEADRACE_RETURN_IF_ERROR(CheckRange("pipeline.boundary_dtype", dtype,
                                      v1::BOUNDARY_DTYPE_UNSPECIFIED, v1::BOUNDARY_DTYPE_BF16));
  job->shape.bf16_boundaries = dtype == v1::BOUNDARY_DTYPE_BF16;

  HEADRACE_ASSIGN_OR_RETURN(job->actions,
                            ParseActions(assignment.plan().stage(job->stage()).actions()));
  job->shape.recomputes =
      std::any_of(job->actions.begin(), job->actions.end(),
                  [](const Action& action) { return action.kind == ActionKind::kRecompute; });
  return CheckActions(job->actions, job->stage(), job->num_micro_batches());
}

absl::Status ReadGenerate(const v1::StageAssignment& assignment, StageJob* job) {
  job->generates = true;
  job->generate = assignment.generate().request();
  const v1::GenerateRequest& request = job->generate;
  const Model& model = job->shape.model;
  HEADRACE_RETURN_IF_ERROR(CheckRange("prompt tokens", request.prompt_size(), 1, 1 << 24));
  HEADRACE_RETURN_IF_ERROR(CheckRange("max_tokens", request.max_tokens(), 1, 1 << 24));
  HEADRACE_RETURN_IF_ERROR(CheckRange("top_k", request.top_k(), 0, kMax31));
  if (!std::isfinite(request.temperature()) || request.temperature() < 0) {
    return Bad("temperature is ", request.temperature(), "; expected a number from 0");
  }
  for (int64_t token : request.prompt()) {
    HEADRACE_RETURN_IF_ERROR(CheckRange("a prompt token", token, 0, model.vocabulary - 1));
  }
  if (assignment.weights().empty()) return Bad("no weights to generate from");
  const int64_t longest =
      std::min<int64_t>(model.context, request.prompt_size() + request.max_tokens() - 1);
  HEADRACE_RETURN_IF_ERROR(CheckMicroBatchSize(model, 1, longest));
  job->micro_batches = {{1, longest}};
  job->first_sequence = {0};
  job->shape.largest = job->micro_batches.front();
  job->shape.optimizer_moments = 0;
  job->shape.training = false;
  return absl::OkStatus();
}

// Of training that goes on: from where, and what is left out.
absl::Status ReadStart(const v1::StageAssignment& assignment, const Model& model, StageJob* job) {
  const int64_t steps = job->training.steps();
  job->start_step = assignment.start_step();
  HEADRACE_RETURN_IF_ERROR(CheckRange("start_step", job->start_step, 0, steps));
  for (const v1::WeightsSlice& slice : assignment.weights()) {
    if (job->start_step == 0) break;
    HEADRACE_RETURN_IF_ERROR(
        CheckRange("the first layer of a slice", slice.first_layer(), 0, model.layers + 1));
    HEADRACE_RETURN_IF_ERROR(CheckRange("the end of a slice's layers", slice.end_layer(),
                                        slice.first_layer() + 1, model.layers + 2));
  }
  const bool has_state = !assignment.weights().empty() || job->simulated();
  if (job->start_step > 0 && !has_state) {
    return Bad("training goes on after step ", job->start_step, ", but from no state");
  }
  int64_t after = 0;
  for (const v1::StepRange& range : assignment.skipped()) {
    HEADRACE_RETURN_IF_ERROR(
        CheckRange("the first of skipped steps", range.first(), after + 1, steps));
    HEADRACE_RETURN_IF_ERROR(
        CheckRange("the last of skipped steps", range.last(), range.first(), steps));
    after = range.last();
  }
  job->skipped.assign(assignment.skipped().begin(), assignment.skipped().end());
  for (const double loss : assignment.recent_losses()) {
    if (!std::isfinite(loss)) return Bad("a recent loss is ", loss, "; expected numbers");
  }
  job->recent_losses.assign(assignment.recent_losses().begin(), assignment.recent_losses().end());
  return absl::OkStatus();
}

absl::Status CheckNumber(const char* what, double value) {
  if (std::isfinite(value) && value >= 0) return absl::OkStatus();
  return Bad(what, " is ", value, "; expected a number from 0");
}

// When state is kept, and what is done when something goes wrong.
absl::Status ReadUpkeep(const v1::JobSpec& spec, StageJob* job) {
  const v1::CheckpointSpec& checkpoint = spec.checkpoint();
  HEADRACE_RETURN_IF_ERROR(
      CheckRange("checkpoint.every_steps", checkpoint.every_steps(), 0, kMax31));
  HEADRACE_RETURN_IF_ERROR(CheckNumber("checkpoint.every_minutes", checkpoint.every_minutes()));
  HEADRACE_RETURN_IF_ERROR(
      CheckRange("checkpoint.replicate_every", checkpoint.replicate_every(), 0, kMax31));
  HEADRACE_RETURN_IF_ERROR(CheckRange("checkpoint.replicate", checkpoint.replicate(),
                                      v1::REPLICATION_UNSPECIFIED, v1::REPLICATION_OFF));
  if (!checkpoint.store().empty()) {
    HEADRACE_RETURN_IF_ERROR(PathOfFolder(checkpoint.store()).status());
  }
  job->checkpoint = checkpoint;
  const v1::RecoverySpec& recovery = spec.recovery();
  HEADRACE_RETURN_IF_ERROR(CheckRange("recovery.on_nan", recovery.on_nan(),
                                      v1::NAN_POLICY_UNSPECIFIED, v1::NAN_POLICY_SKIP));
  HEADRACE_RETURN_IF_ERROR(CheckNumber("recovery.spike_factor", recovery.spike_factor()));
  HEADRACE_RETURN_IF_ERROR(
      CheckNumber("recovery.coordinator_timeout_s", recovery.coordinator_timeout_s()));
  job->recovery = recovery;
  if (recovery.has_coordinator_timeout_s()) {
    job->coordinator_timeout = absl::Seconds(recovery.coordinator_timeout_s());
  }
  return absl::OkStatus();
}

// All stages of a job are simulated or none is: what a simulated one sends is no number.
absl::Status ReadSim(const v1::StageAssignment& assignment, const WorkerLimits& limits,
                     StageJob* job) {
  for (const v1::StagePlan& stage : assignment.plan().stage()) {
    if (stage.has_sim() != limits.simulated) {
      return Bad("stage ", stage.stage(), stage.has_sim() ? " is simulated" : " is real",
                 ", but worker ", job->worker(), limits.simulated ? " is simulated" : " is real",
                 "; expected all stages of a job to be alike");
    }
    if (!limits.simulated) continue;
    HEADRACE_RETURN_IF_ERROR(CheckSim(stage.sim()));
    job->sim.push_back(stage.sim());
  }
  if (!limits.simulated) return absl::OkStatus();
  if (assignment.has_generate()) return Bad("a simulated worker has no weights to generate from");
  if (assignment.options().hash_tensors()) return Bad("a simulated worker has no tensors to hash");
  return absl::OkStatus();
}

absl::Status CheckBlobs(const v1::StageAssignment& assignment) {
  for (const v1::WeightsSlice& slice : assignment.weights()) {
    if (!IsSha256(slice.sha256())) return Bad("weights '", slice.sha256(), "' are not a SHA-256");
    HEADRACE_RETURN_IF_ERROR(CheckRange("bytes of weights", slice.size_bytes(), 0, kMaxBlobBytes));
  }
  if (!assignment.has_generate() && !IsSha256(assignment.dataset().sha256())) {
    return Bad("dataset '", assignment.dataset().sha256(), "' is not a SHA-256");
  }
  HEADRACE_RETURN_IF_ERROR(
      CheckRange("tokens of the dataset", assignment.dataset().num_tokens(), 0, kMaxBlobBytes));
  HEADRACE_RETURN_IF_ERROR(CheckRange("bytes a token", assignment.dataset().token_bytes(), 0, 4));
  return absl::OkStatus();
}

// What CUDA kernels are not for. `limits.bf16` is the device's compute capability.
absl::Status CheckCuda(const StageJob& job, const WorkerLimits& limits) {
  if (limits.device != DeviceKind::kCuda) return absl::OkStatus();
  const std::string who = absl::StrCat("stage ", job.stage(), ", worker ", job.worker(), ": ");
  if (job.shape.model.head_size > kLargestCudaHead) {
    return absl::FailedPreconditionError(
        absl::StrCat(who, "attention heads of ", job.shape.model.head_size,
                     "; on a CUDA device they may have at most ", kLargestCudaHead));
  }
  if (job.shape.precision != Precision::kFp32 && !limits.bf16) {
    return absl::FailedPreconditionError(absl::StrCat(
        who, "precision bf16 needs a CUDA device of compute capability 8.0, its own has less"));
  }
  const int64_t staging = LinkPools::StagedBytes(job, /*shares=*/false);
  if (staging > limits.staging_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        who, "needs ", FormatBytes(staging), " of pinned host memory for what travels, has ",
        FormatBytes(limits.staging_bytes)));
  }
  return absl::OkStatus();
}

absl::Status CheckPrecision(const StageJob& job, const WorkerLimits& limits) {
  if (limits.device != DeviceKind::kCpu) return absl::OkStatus();
  if (job.shape.precision != Precision::kBf16 || limits.bf16 || limits.simulated) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "stage ", job.stage(), " has precision bf16, which the CPU of worker ", job.worker(),
      " cannot multiply (avx512_bf16); training.bf16_emulate: true computes it on any CPU"));
}

absl::Status CheckMemory(const StageJob& job, const WorkerLimits& limits) {
  const StageBytes need = StageMemory(job.shape, job.actions);
  if (need.total() <= limits.memory_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("stage ", job.stage(), " needs ", FormatBytes(need.total()), " (weights ",
                   FormatBytes(need.weights), ", gradients ", FormatBytes(need.gradients),
                   ", optimizer ", FormatBytes(need.optimizer), ", stash ", FormatBytes(need.stash),
                   ", workspace ", FormatBytes(need.workspace), ", link ", FormatBytes(need.link),
                   "), worker ", job.worker(), " has ", FormatBytes(limits.memory_bytes)));
}

}  // namespace

absl::StatusOr<StageJob> CheckAssignment(const v1::StageAssignment& assignment,
                                         const WorkerLimits& limits) {
  StageJob job;
  if (assignment.job_id().empty()) return Bad("no job id");
  job.job_id = assignment.job_id();
  job.generation = assignment.generation();
  HEADRACE_ASSIGN_OR_RETURN(job.shape.model, ResolveModel(assignment.spec().model()));
  HEADRACE_RETURN_IF_ERROR(CheckStages(assignment, job.shape.model));
  job.peers.assign(assignment.peers().begin(), assignment.peers().end());
  job.shape.stage = assignment.stage();
  job.shape.num_stages = assignment.plan().stage_size();
  job.shape.threads = limits.threads;
  job.shape.device = limits.device;
  job.shape.precision = PrecisionOf(assignment.spec().training());
  job.shape.tf32 = assignment.spec().training().tf32();
  const v1::StagePlan& stage = assignment.plan().stage(job.stage());
  const std::vector<LayerSpec> layers = BuildLayers(job.shape.model);
  for (const v1::StagePlan& each : assignment.plan().stage()) {
    job.devices.push_back(DeviceKindOf(each.device()));
  }
  job.shape.layers.assign(layers.begin() + stage.first_layer(), layers.begin() + stage.end_layer());

  const int64_t credits = assignment.spec().pipeline().credits();
  job.shape.credits = credits == 0 ? kDefaultCredits : credits;
  HEADRACE_RETURN_IF_ERROR(CheckRange("pipeline.credits", job.shape.credits, 1, kMaxCredits));
  job.transport = assignment.spec().pipeline().transport();
  if (assignment.wait_timeout_ms() != 0) {
    HEADRACE_RETURN_IF_ERROR(
        CheckRange("wait_timeout_ms", assignment.wait_timeout_ms(), 1, kMaxWaitMs));
    job.wait_timeout = absl::Milliseconds(assignment.wait_timeout_ms());
  }
  HEADRACE_RETURN_IF_ERROR(CheckBlobs(assignment));
  job.dataset = assignment.dataset();
  job.weights.assign(assignment.weights().begin(), assignment.weights().end());
  job.hash_tensors = assignment.options().hash_tensors();
  HEADRACE_RETURN_IF_ERROR(ReadSim(assignment, limits, &job));
  HEADRACE_RETURN_IF_ERROR(assignment.has_generate() ? ReadGenerate(assignment, &job)
                                                     : ReadTraining(assignment, &job));
  if (!job.generates) {
    HEADRACE_RETURN_IF_ERROR(ReadStart(assignment, job.shape.model, &job));
    HEADRACE_RETURN_IF_ERROR(ReadUpkeep(assignment.spec(), &job));
  }
  HEADRACE_RETURN_IF_ERROR(CheckPrecision(job, limits));
  HEADRACE_RETURN_IF_ERROR(CheckCuda(job, limits));
  HEADRACE_RETURN_IF_ERROR(CheckMemory(job, limits));
  return job;
}

}  // namespace headrace
