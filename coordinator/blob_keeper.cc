#include "coordinator/blob_keeper.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/log.h"
#include "common/status.h"
#include "coordinator/store/shared_folder.h"
#include "coordinator/weights_hash.h"

namespace headrace {
namespace {

// Between looks whether something is doomed.
constexpr absl::Duration kPause = absl::Milliseconds(500);

// Its hash was verified as it arrived.
absl::Status CheckBlob(const BlobStore& blobs, const v1::WeightsSlice& slice) {
  HEADRACE_ASSIGN_OR_RETURN(const BlobStat stat, blobs.Stat(slice.sha256()));
  if (!stat.complete) return blobs.Path(slice.sha256()).status();
  if (stat.size_bytes == slice.size_bytes()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("blob ", slice.sha256(), " has ", stat.size_bytes,
                                          " bytes, not ", slice.size_bytes()));
}

}  // namespace

absl::Status CheckSlices(const BlobStore& blobs, const v1::Checkpoint& checkpoint,
                         const std::atomic<bool>& stop) {
  for (const v1::WeightsSlice& slice : checkpoint.slices()) {
    HEADRACE_RETURN_IF_ERROR(
        Annotate(slice.uri().empty() ? CheckBlob(blobs, slice) : CheckSharedSlice(slice, stop),
                 absl::StrCat("layers ", slice.first_layer(), " to ", slice.end_layer())));
  }
  return absl::OkStatus();
}

BlobKeeper::BlobKeeper(Store* store, std::function<void(Event)> tell)
    : store_(store), tell_(std::move(tell)) {
  thread_ = std::thread([this] { Loop(); });
}

void BlobKeeper::Stop() {
  stopping_ = true;
  queue_.Close();
  if (thread_.joinable()) thread_.join();
}

// In all three the queue is closed only while shutting down.
void BlobKeeper::Hash(const HashWeights& hash) {
  // Without weight: never refused, for there is one for each living job.
  queue_.Push(hash, 0, absl::InfinitePast()).IgnoreError();
}

void BlobKeeper::Verify(const VerifyCheckpoint& verify) {
  const absl::Status pushed = queue_.Push(verify, 1, absl::InfinitePast());
  if (!absl::IsDeadlineExceeded(pushed)) return;
  tell_(CheckpointVerified{
      verify.job_id, verify.generation, verify.checkpoint,
      absl::ResourceExhaustedError(absl::StrCat(kMaxChecks, " checkpoints wait to be verified"))});
}

void BlobKeeper::CleanUp(const v1::Checkpoint& damaged) {
  queue_.Push(Damaged{damaged}, 1, absl::InfinitePast()).IgnoreError();
}

void BlobKeeper::Loop() {
  absl::Time swept = absl::InfinitePast();
  while (!stopping_) {
    auto next = queue_.Pop(absl::Now() + kPause);
    if (stopping_) return;
    if (next.ok()) std::visit([this](const auto& each) { Do(each); }, *next);
    if (doomed_.exchange(false)) RemoveDoomed();
    if (const absl::Time now = absl::Now(); now - swept >= kSweepEvery || now < swept) {
      swept = now;
      SweepOrphans();
    }
  }
}

void BlobKeeper::Do(const HashWeights& hash) {
  absl::StatusOr<std::string> sha256 = HashWeightsSlices(store_->blobs(), hash.slices, stopping_);
  if (!stopping_) tell_(WeightsHashed{hash.job_id, hash.generation, std::move(sha256)});
}

void BlobKeeper::Do(const VerifyCheckpoint& verify) {
  const absl::Status status = CheckSlices(store_->blobs(), verify.checkpoint, stopping_);
  if (stopping_) return;
  tell_(CheckpointVerified{verify.job_id, verify.generation, verify.checkpoint, status});
}

void BlobKeeper::Do(const Damaged& damaged) {
  for (const v1::WeightsSlice& slice : damaged.checkpoint.slices()) {
    if (!slice.uri().empty()) continue;  // written anew under its name, whatever is there
    const auto removed = store_->blobs().RemoveIfDamaged(slice.sha256(), stopping_);
    if (removed.ok() && *removed) {
      LogWarning(absl::StrCat("blob ", slice.sha256(), " was damaged on the disk; removed it"));
    }
  }
}

void BlobKeeper::RemoveDoomed() {
  const absl::StatusOr<std::vector<std::string>> names = store_->jobs().LoadDoomed();
  if (!names.ok()) {
    LogWarning(absl::StrCat("cannot delete old checkpoints: ", names.status().message()));
    return;
  }
  for (const std::string& name : *names) {
    if (stopping_) return;
    absl::Status status = store_->RemoveDoomed(name);
    if (status.ok()) status = store_->jobs().ForgetDoomed(name);
    // It stays doomed: the next time, or after the next start.
    if (!status.ok()) {
      LogWarning(absl::StrCat("cannot delete ", name, " now: ", status.message()));
    }
  }
}

void BlobKeeper::SweepOrphans() {
  const absl::Status status = store_->SweepOrphans(absl::Now()).status();
  if (!status.ok()) LogWarning(absl::StrCat("cannot look for old blobs: ", status.message()));
}

}  // namespace headrace
