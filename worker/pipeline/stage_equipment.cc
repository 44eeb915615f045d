#include "worker/pipeline/stage_equipment.h"

#include <utility>

#include "absl/time/clock.h"
#include "common/status.h"
#include "plan/cuda_memory.h"
#include "plan/stage_memory.h"
#include "worker/backend/carved_ops.h"
#include "worker/pipeline/device_needs.h"
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

absl::StatusOr<std::unique_ptr<StageEquipment>> StageEquipment::Create(const StageJob* job,
                                                                       const DeviceOpener& open) {
  std::unique_ptr<StageEquipment> equipment(new StageEquipment(job));
  HEADRACE_RETURN_IF_ERROR(equipment->Carve(open));
  return equipment;
}

absl::Status StageEquipment::OpenDevice(const DeviceOpener& open) {
  if (!job_.simulated()) {
    const int64_t staging = LinkPools::StagedBytes(job_, region_ != nullptr);
    DeviceNeeds needs = NeedsOf(job_.shape, ArenaBytes(job_), staging);
    if (region_ != nullptr) {
      needs.shared = region_->base();
      needs.shared_bytes = region_->name().bytes;
    }
    HEADRACE_ASSIGN_OR_RETURN(device_, open(needs));
    return absl::OkStatus();
  }
  HEADRACE_ASSIGN_OR_RETURN(std::unique_ptr<Arena> arena, Arena::Create(ArenaBytes(job_)));
  // Its memory is what a real one's would be.
  HEADRACE_RETURN_IF_ERROR(
      CarvePanels(job_.shape.precision, job_.shape.threads, arena.get()).status());
  device_ = HostDevice(std::move(arena), CreateSimOps());
  return absl::OkStatus();
}

absl::Status StageEquipment::CarveModel() {
  Arena* const arena = device_->arena();
  if (job_.simulated()) {
    HEADRACE_ASSIGN_OR_RETURN(
        model_, CreateSimModel(job_.sim[job_.stage()], job_.shape, arena, device_->ops()));
  } else {
    HEADRACE_ASSIGN_OR_RETURN(model_, StageModel::Create(job_.shape, arena, device_->ops()));
  }
  if (!job_.generates) {
    HEADRACE_ASSIGN_OR_RETURN(
        optimizer_, Optimizer::Create(job_.training, &model_->parameters(), arena, device_->ops()));
  }
  return absl::OkStatus();
}

absl::Status StageEquipment::CarveNumbers() {
  if (job_.generates) return absl::OkStatus();
  ComputeDevice* const device = device_.get();
  const int64_t losses = job_.last() ? job_.num_micro_batches() : 0;
  HEADRACE_ASSIGN_OR_RETURN(losses_, DeviceNumbers::Create(device, losses, "losses"));
  HEADRACE_ASSIGN_OR_RETURN(
      evaluation_loss_, DeviceNumbers::Create(device, job_.last() ? 1 : 0, "an evaluation's loss"));
  HEADRACE_ASSIGN_OR_RETURN(
      squares_, DeviceNumbers::Create(device, OwnParameters(job_.shape.layers), "squared norms"));
  return absl::OkStatus();
}

absl::Status StageEquipment::Carve(const DeviceOpener& open) {
  Share();
  HEADRACE_RETURN_IF_ERROR(OpenDevice(open));
  HEADRACE_RETURN_IF_ERROR(CarveModel());
  Arena* const arena = device_->arena();
  const bool shares_boundaries =
      !job_.staged() && job_.stage() > 0 && job_.MayShareMemoryWith(job_.stage() - 1);
  HEADRACE_ASSIGN_OR_RETURN(stash_,
                            Stash::Create(job_.shape, job_.actions, job_.num_micro_batches(), arena,
                                          shares_boundaries ? region_.get() : nullptr));
  HEADRACE_ASSIGN_OR_RETURN(codec_, BoundaryCodec::Create(job_.shape, arena, device_->ops()));
  HEADRACE_RETURN_IF_ERROR(CarveNumbers());
  HEADRACE_ASSIGN_OR_RETURN(token_io_, TokenIo::Create(job_, device_.get()));
  HEADRACE_ASSIGN_OR_RETURN(pools_, LinkPools::Create(job_, stash_->boundary_pool(), arena,
                                                      region_.get(), device_->staging()));
  shared_inputs_ = DescribeSharedInputs(job_, pools_, region_.get(), why_not_shared_);
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

void StageEquipment::Share() {
  if (!HasSharedInputs(job_)) {
    why_not_shared_ = "the workers do not tell that they are on one host";
    return;
  }
  absl::StatusOr<std::unique_ptr<SharedRegion>> region =
      SharedRegion::Create(SharedInputBytes(job_));
  if (region.ok()) {
    region_ = *std::move(region);
  } else {
    why_not_shared_ = std::string(region.status().message());
  }
}

absl::Status StageEquipment::OpenData(const std::string& path) {
  HEADRACE_ASSIGN_OR_RETURN(tokens_, TokenFile::Open(path));
  HEADRACE_ASSIGN_OR_RETURN(
      sampler_, Sampler::Create(tokens_.get(), job_.data, job_.training.sequence_length(),
                                job_.training.batch_size(), job_.shape.model.vocabulary));
  return absl::OkStatus();
}

StageParts StageEquipment::Parts(Exchange* exchange, const std::atomic<bool>* cancelled) const {
  StageParts parts;
  parts.model = model_.get();
  parts.optimizer = optimizer_.get();
  parts.device = device_.get();
  parts.ops = device_->ops();
  parts.tokens = token_io_.get();
  parts.losses = losses_.get();
  parts.evaluation_loss = evaluation_loss_.get();
  parts.squares = squares_.get();
  parts.stash = stash_.get();
  parts.codec = codec_.get();
  parts.exchange = exchange;
  parts.sampler = sampler();
  parts.cancelled = cancelled;
  return parts;
}

v1::MemoryBytes StageEquipment::PeakMemory() const {
  return ByKind([this](MemoryKind kind) { return device_->arena()->peak(kind); });
}

v1::MemoryBytes StageEquipment::MemoryInUse() const {
  return ByKind([this](MemoryKind kind) { return device_->arena()->in_use(kind); });
}

}  // namespace headrace
