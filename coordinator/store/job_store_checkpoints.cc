// Checkpoints, and what may be deleted. A manifest never points at what is not there: a row comes
// after its slices, and goes before them. The same transaction that takes a row away notes what
// lost its last use with it as doomed; whoever deletes those, now or after a crash, finds them
// there.

#include "common/status.h"
#include "coordinator/store/job_store.h"
#include "coordinator/store/row.h"

namespace headrace {
namespace {

// In place of a checkpoint's step.
constexpr int64_t kData = -1;
constexpr int64_t kWeights = -2;

const std::string& NameOf(const v1::WeightsSlice& slice) {
  return slice.uri().empty() ? slice.sha256() : slice.uri();
}

}  // namespace

absl::Status JobStore::AddUse(const std::string& name, int64_t number, int64_t step) {
  if (name.empty()) return absl::OkStatus();
  HEADRACE_ASSIGN_OR_RETURN(Statement insert,
                            writer_->Prepare("INSERT OR IGNORE INTO uses VALUES (?, ?, ?)"));
  HEADRACE_RETURN_IF_ERROR(insert.Bind(1, name).Bind(2, number).Bind(3, step).Run());
  HEADRACE_ASSIGN_OR_RETURN(Statement spare, writer_->Prepare("DELETE FROM doomed WHERE name=?"));
  return spare.Bind(1, name).Run();
}

absl::Status JobStore::SaveUsesOfJob(int64_t number, const v1::Job& job) {
  HEADRACE_RETURN_IF_ERROR(AddUse(job.dataset().sha256(), number, kData));
  for (const v1::WeightsSlice& slice : job.weights()) {
    HEADRACE_RETURN_IF_ERROR(AddUse(NameOf(slice), number, kWeights));
  }
  return absl::OkStatus();
}

absl::Status JobStore::RemoveCheckpoint(int64_t number, int64_t step) {
  HEADRACE_ASSIGN_OR_RETURN(
      Statement doom,
      writer_->Prepare(
          "INSERT OR IGNORE INTO doomed SELECT name FROM uses WHERE job=?1 AND step=?2 AND NOT "
          "EXISTS (SELECT 1 FROM uses AS other WHERE other.name=uses.name AND NOT "
          "(other.job=?1 AND other.step=?2))"));
  HEADRACE_RETURN_IF_ERROR(doom.Bind(1, number).Bind(2, step).Run());
  HEADRACE_ASSIGN_OR_RETURN(Statement uses,
                            writer_->Prepare("DELETE FROM uses WHERE job=? AND step=?"));
  HEADRACE_RETURN_IF_ERROR(uses.Bind(1, number).Bind(2, step).Run());
  HEADRACE_ASSIGN_OR_RETURN(Statement row,
                            writer_->Prepare("DELETE FROM checkpoints WHERE job=? AND step=?"));
  return row.Bind(1, number).Bind(2, step).Run();
}

absl::Status JobStore::SaveCheckpoint(const std::string& job_id, const v1::Checkpoint& checkpoint) {
  HEADRACE_ASSIGN_OR_RETURN(const int64_t number, JobNumber(job_id));
  if (checkpoint.step() < 0) return absl::InvalidArgumentError("a checkpoint of a negative step");
  absl::MutexLock lock(&write_mu_);
  HEADRACE_RETURN_IF_ERROR(RemoveCheckpoint(number, checkpoint.step()));
  v1::Checkpoint bare = checkpoint;
  for (v1::WeightsSlice& slice : *bare.mutable_slices()) slice.clear_holder_addresses();
  HEADRACE_ASSIGN_OR_RETURN(Statement insert,
                            writer_->Prepare("INSERT INTO checkpoints VALUES (?, ?, ?)"));
  insert.Bind(1, number).Bind(2, checkpoint.step()).Bind(3, bare.SerializeAsString());
  HEADRACE_RETURN_IF_ERROR(insert.Run());
  for (const v1::WeightsSlice& slice : checkpoint.slices()) {
    HEADRACE_RETURN_IF_ERROR(AddUse(NameOf(slice), number, checkpoint.step()));
  }
  return absl::OkStatus();
}

absl::Status JobStore::DropCheckpoints(const std::string& job_id,
                                       const std::vector<int64_t>& steps) {
  HEADRACE_ASSIGN_OR_RETURN(const int64_t number, JobNumber(job_id));
  absl::MutexLock lock(&write_mu_);
  for (const int64_t step : steps) {
    if (step < 0) return absl::InvalidArgumentError("a checkpoint of a negative step");
    HEADRACE_RETURN_IF_ERROR(RemoveCheckpoint(number, step));
  }
  return absl::OkStatus();
}

absl::Status JobStore::ForgetDoomed(const std::string& name) {
  absl::MutexLock lock(&write_mu_);
  HEADRACE_ASSIGN_OR_RETURN(Statement forget, writer_->Prepare("DELETE FROM doomed WHERE name=?"));
  return forget.Bind(1, name).Run();
}

absl::Status JobStore::LoadCheckpoints(int64_t number, v1::Job* job) {
  HEADRACE_ASSIGN_OR_RETURN(
      Statement rows,
      reader_->Prepare("SELECT checkpoint FROM checkpoints WHERE job=? ORDER BY step"));
  rows.Bind(1, number);
  while (true) {
    HEADRACE_ASSIGN_OR_RETURN(const bool more, rows.Step());
    if (!more) return absl::OkStatus();
    HEADRACE_RETURN_IF_ERROR(ParseColumn(rows, 0, "checkpoint", job->add_checkpoints()));
  }
}

absl::StatusOr<std::vector<std::string>> JobStore::LoadDoomed() {
  absl::MutexLock lock(&read_mu_);
  HEADRACE_ASSIGN_OR_RETURN(Statement rows, reader_->Prepare("SELECT name FROM doomed"));
  std::vector<std::string> names;
  while (true) {
    HEADRACE_ASSIGN_OR_RETURN(const bool more, rows.Step());
    if (!more) return names;
    names.push_back(rows.Blob(0));
  }
}

absl::StatusOr<bool> JobStore::IsUsed(const std::string& name) {
  absl::MutexLock lock(&read_mu_);
  HEADRACE_ASSIGN_OR_RETURN(Statement row, reader_->Prepare("SELECT 1 FROM uses WHERE name=?"));
  return row.Bind(1, name).Step();
}

}  // namespace headrace
