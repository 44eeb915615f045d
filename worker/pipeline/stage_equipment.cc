#include "worker/pipeline/stage_equipment.h"

#include <utility>

#include "absl/time/clock.h"
#include "common/status.h"
#include "plan/stage_memory.h"
#include "worker/backend/carved_ops.h"
#include "worker/sim/sim_model.h"
#include "worker/sim/sim_ops.h"

namespace headrace {
namespace {

// What StageMemory predicts. Pools take address space for their own peaks, which for an unusual
// list of actions may be more than the peak of all together; only what is in use counts as memory.
int64_t ArenaBytes(const StageJob& job) {
  const StageBytes bytes = StageMemory(job.shape, job.actions);
  return bytes.weights + bytes.gradients + bytes.optimizer + bytes.workspace +
         Stash::CarvedBytes(job.shape, job.actions) + LinkPools::CarvedBytes(job);
}

template <typename Read>
v1::MemoryBytes ByKind(const Read& read) {
  v1::MemoryBytes bytes;
  bytes.set_weights(read(MemoryKind::kWeights));
  bytes.set_gradients(read(MemoryKind::kGradients));
  bytes.set_optimizer(read(MemoryKind::kOptimizer));
  bytes.set_stash(read(MemoryKind::kStash));
  bytes.set_workspace(read(MemoryKind::kWorkspace));
  bytes.set_link(read(MemoryKind::kLink));
  return bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StageEquipment>> StageEquipment::Create(const StageJob* job) {
  std::unique_ptr<StageEquipment> equipment(new StageEquipment(job));
  HEADRACE_RETURN_IF_ERROR(equipment->Carve());
  return equipment;
}

absl::Status StageEquipment::Carve() {
  HEADRACE_ASSIGN_OR_RETURN(arena_, Arena::Create(ArenaBytes(job_)));
  if (job_.simulated()) {
    ops_ = CreateSimOps();
    // Its memory is what a real one's would be.
    HEADRACE_RETURN_IF_ERROR(
        CarvePanels(job_.shape.precision, job_.shape.threads, arena_.get()).status());
    HEADRACE_ASSIGN_OR_RETURN(
        model_, CreateSimModel(job_.sim[job_.stage()], job_.shape, arena_.get(), ops_.get()));
  } else {
    HEADRACE_ASSIGN_OR_RETURN(ops_,
                              CarveCpuOps(job_.shape.precision, job_.shape.threads, arena_.get()));
    HEADRACE_ASSIGN_OR_RETURN(model_, StageModel::Create(job_.shape, arena_.get(), ops_.get()));
  }
  if (!job_.generates) {
    HEADRACE_ASSIGN_OR_RETURN(optimizer_, Optimizer::Create(job_.training, &model_->parameters(),
                                                            arena_.get(), ops_.get()));
  }
  std::string why_none = Share();
  const bool shares_boundaries = job_.stage() > 0 && job_.MayShareMemoryWith(job_.stage() - 1);
  HEADRACE_ASSIGN_OR_RETURN(
      stash_, Stash::Create(job_.shape, job_.actions, job_.num_micro_batches(), arena_.get(),
                            shares_boundaries ? region_.get() : nullptr));
  HEADRACE_ASSIGN_OR_RETURN(codec_, BoundaryCodec::Create(job_.shape, arena_.get(), ops_.get()));
  HEADRACE_ASSIGN_OR_RETURN(
      pools_, LinkPools::Create(job_, stash_->boundary_pool(), arena_.get(), region_.get()));
  shared_inputs_ = DescribeSharedInputs(job_, pools_, region_.get(), std::move(why_none));
  Inbox::Pace pace;
  if (job_.simulated()) {
    wire_ = std::make_unique<SimWire>(job_.sim);
    pace = [job = &job_, wire = wire_.get()](const Tag& tag) {
      return wire->Deliver(tag.from_stage, BytesOf(*job, tag), absl::Now());
    };
  }
  inbox_ = std::make_unique<Inbox>(
      [job = &job_, pools = pools_](const Tag& tag) { return Expect(*job, pools, tag); },
      std::move(pace));
  return absl::OkStatus();
}

std::string StageEquipment::Share() {
  if (!HasSharedInputs(job_)) return "the workers do not tell that they are on one host";
  absl::StatusOr<std::unique_ptr<SharedRegion>> region =
      SharedRegion::Create(SharedInputBytes(job_));
  if (!region.ok()) return std::string(region.status().message());
  region_ = *std::move(region);
  return "";
}

absl::Status StageEquipment::OpenData(const std::string& path) {
  HEADRACE_ASSIGN_OR_RETURN(tokens_, TokenFile::Open(path));
  HEADRACE_ASSIGN_OR_RETURN(
      sampler_, Sampler::Create(tokens_.get(), job_.data, job_.training.sequence_length(),
                                job_.training.batch_size(), job_.shape.model.vocabulary));
  return absl::OkStatus();
}

v1::MemoryBytes StageEquipment::PeakMemory() const {
  return ByKind([this](MemoryKind kind) { return arena_->peak(kind); });
}

v1::MemoryBytes StageEquipment::MemoryInUse() const {
  return ByKind([this](MemoryKind kind) { return arena_->in_use(kind); });
}

}  // namespace headrace
