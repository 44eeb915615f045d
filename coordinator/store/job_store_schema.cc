// The tables of a job store, and how those of an older version become today's.
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "coordinator/store/job_store.h"
#include "coordinator/store/row.h"

namespace headrace {
namespace {

constexpr int64_t kApplicationId = 0x48524345;  // "HRCE"
constexpr int64_t kSchemaVersion = 2;

constexpr char kSchema[] = R"sql(
CREATE TABLE jobs (number INTEGER PRIMARY KEY, name BLOB NOT NULL, state INTEGER NOT NULL,
                   step INTEGER NOT NULL, job BLOB NOT NULL, options BLOB NOT NULL);
CREATE INDEX jobs_by_name ON jobs (name, number);
CREATE TABLE plans (job INTEGER NOT NULL REFERENCES jobs, generation INTEGER NOT NULL,
                    plan BLOB NOT NULL, PRIMARY KEY (job, generation)) WITHOUT ROWID;
CREATE TABLE steps (job INTEGER NOT NULL REFERENCES jobs, step INTEGER NOT NULL,
                    result BLOB NOT NULL, PRIMARY KEY (job, step)) WITHOUT ROWID;
CREATE TABLE events (job INTEGER NOT NULL REFERENCES jobs, id INTEGER NOT NULL,
                     event BLOB NOT NULL, PRIMARY KEY (job, id)) WITHOUT ROWID;
CREATE TABLE tensor_hashes (job INTEGER NOT NULL REFERENCES jobs, id INTEGER NOT NULL,
                            step INTEGER NOT NULL, hashes BLOB NOT NULL,
                            PRIMARY KEY (job, id)) WITHOUT ROWID;
CREATE TABLE flight_records (job INTEGER NOT NULL REFERENCES jobs, place INTEGER NOT NULL,
                             record BLOB NOT NULL, PRIMARY KEY (job, place)) WITHOUT ROWID;
)sql";

// Since version 2. `uses.step` is a checkpoint's, or kData or kWeights.
constexpr char kCheckpointTables[] = R"sql(
CREATE TABLE checkpoints (job INTEGER NOT NULL REFERENCES jobs, step INTEGER NOT NULL,
                          checkpoint BLOB NOT NULL, PRIMARY KEY (job, step)) WITHOUT ROWID;
CREATE TABLE uses (name BLOB NOT NULL, job INTEGER NOT NULL REFERENCES jobs,
                   step INTEGER NOT NULL, PRIMARY KEY (name, job, step)) WITHOUT ROWID;
CREATE INDEX uses_by_job ON uses (job, step);
CREATE TABLE doomed (name BLOB PRIMARY KEY) WITHOUT ROWID;
)sql";

// Came later; a version that does not know them leaves them alone.
constexpr char kLaterTables[] = R"sql(
CREATE TABLE IF NOT EXISTS layer_costs (id INTEGER PRIMARY KEY, device BLOB NOT NULL,
                                        layer BLOB NOT NULL, seconds BLOB NOT NULL,
                                        UNIQUE (device, layer));
CREATE TABLE IF NOT EXISTS traces (id INTEGER PRIMARY KEY, job INTEGER NOT NULL UNIQUE,
                                   trace BLOB NOT NULL);
)sql";

}  // namespace

absl::StatusOr<std::unique_ptr<JobStore>> JobStore::Open(const std::string& path) {
  std::unique_ptr<JobStore> store(new JobStore);
  {
    absl::MutexLock lock(&store->write_mu_);
    HEADRACE_ASSIGN_OR_RETURN(store->writer_, Database::Open(path, kApplicationId));
    HEADRACE_RETURN_IF_ERROR(store->Migrate());
    HEADRACE_RETURN_IF_ERROR(store->writer_->Execute(kLaterTables));
  }
  absl::MutexLock lock(&store->read_mu_);
  HEADRACE_ASSIGN_OR_RETURN(store->reader_, Database::Open(path, kApplicationId));
  return store;
}

absl::Status JobStore::Migrate() {
  HEADRACE_ASSIGN_OR_RETURN(const int64_t version, writer_->QueryInt("PRAGMA user_version"));
  if (version == kSchemaVersion) return absl::OkStatus();
  if (version > kSchemaVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat(writer_->path(), " was written by a newer version of Headrace (schema ",
                     version, "; this one knows ", kSchemaVersion, ")"));
  }
  // Whole or not at all: closing the connection takes back what has not been committed.
  HEADRACE_RETURN_IF_ERROR(writer_->Execute("BEGIN IMMEDIATE"));
  if (version == 0) HEADRACE_RETURN_IF_ERROR(writer_->Execute(kSchema));
  HEADRACE_RETURN_IF_ERROR(writer_->Execute(kCheckpointTables));
  HEADRACE_RETURN_IF_ERROR(NoteUsesOfOldJobs());
  return writer_->Execute(absl::StrCat("PRAGMA user_version=", kSchemaVersion, ";COMMIT;"));
}

absl::Status JobStore::NoteUsesOfOldJobs() {
  HEADRACE_ASSIGN_OR_RETURN(Statement rows, writer_->Prepare("SELECT number, job FROM jobs"));
  while (true) {
    HEADRACE_ASSIGN_OR_RETURN(const bool more, rows.Step());
    if (!more) return absl::OkStatus();
    v1::Job job;
    HEADRACE_RETURN_IF_ERROR(ParseColumn(rows, 1, "job", &job));
    HEADRACE_RETURN_IF_ERROR(SaveUsesOfJob(rows.Int(0), job));
  }
}

}  // namespace headrace
