#include "coordinator/store/job_store.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace headrace {
namespace {

constexpr int64_t kApplicationId = 0x48524345;  // "HRCE"
constexpr int64_t kSchemaVersion = 1;

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

// Came later; a version that does not know them leaves them alone.
constexpr char kLaterTables[] = R"sql(
CREATE TABLE IF NOT EXISTS layer_costs (id INTEGER PRIMARY KEY, device BLOB NOT NULL,
                                        layer BLOB NOT NULL, seconds BLOB NOT NULL,
                                        UNIQUE (device, layer));
CREATE TABLE IF NOT EXISTS traces (id INTEGER PRIMARY KEY, job INTEGER NOT NULL UNIQUE,
                                   trace BLOB NOT NULL);
)sql";

template <typename Message>
absl::Status Parse(const Statement& row, int column, const char* what, Message* message) {
  if (message->ParseFromString(row.Blob(column))) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("the database holds a damaged ", what));
}

}  // namespace

absl::StatusOr<int64_t> JobNumber(const std::string& job_id) {
  int64_t number = 0;
  if (job_id.size() < 2 || job_id.size() > 19 || job_id[0] != 'j' || job_id[1] < '1' ||
      job_id[1] > '9' || !absl::SimpleAtoi(job_id.substr(1), &number)) {
    return absl::InvalidArgumentError(absl::StrCat("\"", job_id, "\" is not a job id"));
  }
  return number;
}

bool HasEnded(v1::JobState state) {
  return state == v1::JOB_STATE_DONE || state == v1::JOB_STATE_FAILED ||
         state == v1::JOB_STATE_CANCELLED;
}

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
  return writer_->Execute(
      absl::StrCat("BEGIN;", kSchema, "PRAGMA user_version=", kSchemaVersion, ";COMMIT;"));
}

absl::Status JobStore::Begin() {
  absl::MutexLock lock(&write_mu_);
  return writer_->Execute("BEGIN IMMEDIATE");
}

absl::Status JobStore::Commit() {
  absl::MutexLock lock(&write_mu_);
  return writer_->Execute("COMMIT");
}

void JobStore::Rollback() {
  absl::MutexLock lock(&write_mu_);
  // Fails where SQLite has already rolled back by itself, which is what was wanted.
  writer_->Execute("ROLLBACK").IgnoreError();
}

absl::Status JobStore::SaveJob(const v1::Job& job, const v1::JobOptions& options) {
  HEADRACE_ASSIGN_OR_RETURN(const int64_t number, JobNumber(job.id()));
  v1::Job bare = job;
  bare.clear_plan();
  bare.clear_steps();
  bare.clear_flight_records();
  absl::MutexLock lock(&write_mu_);
  HEADRACE_ASSIGN_OR_RETURN(
      Statement statement,
      writer_->Prepare("INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (number) DO UPDATE "
                       "SET state=excluded.state, step=excluded.step, job=excluded.job"));
  statement.Bind(1, number).Bind(2, job.name()).Bind(3, static_cast<int64_t>(job.state()));
  statement.Bind(4, job.step()).Bind(5, bare.SerializeAsString());
  statement.Bind(6, options.SerializeAsString());
  HEADRACE_RETURN_IF_ERROR(statement.Run());
  HEADRACE_RETURN_IF_ERROR(SavePlan(number, job));
  return SaveFlightRecords(number, job);
}

absl::Status JobStore::SavePlan(int64_t number, const v1::Job& job) {
  if (!job.has_plan()) return absl::OkStatus();
  HEADRACE_ASSIGN_OR_RETURN(Statement statement,
                            writer_->Prepare("INSERT OR IGNORE INTO plans VALUES (?, ?, ?)"));
  statement.Bind(1, number).Bind(2, job.generation()).Bind(3, job.plan().SerializeAsString());
  return statement.Run();
}

absl::Status JobStore::SaveFlightRecords(int64_t number, const v1::Job& job) {
  for (int i = 0; i < job.flight_records_size(); ++i) {
    HEADRACE_ASSIGN_OR_RETURN(
        Statement statement,
        writer_->Prepare("INSERT OR REPLACE INTO flight_records VALUES (?, ?, ?)"));
    statement.Bind(1, number).Bind(2, int64_t{i});
    statement.Bind(3, job.flight_records(i).SerializeAsString());
    HEADRACE_RETURN_IF_ERROR(statement.Run());
  }
  return absl::OkStatus();
}

absl::Status JobStore::SaveStep(const std::string& job_id, const v1::StepResult& step) {
  HEADRACE_ASSIGN_OR_RETURN(const int64_t number, JobNumber(job_id));
  absl::MutexLock lock(&write_mu_);
  HEADRACE_ASSIGN_OR_RETURN(Statement statement,
                            writer_->Prepare("INSERT OR REPLACE INTO steps VALUES (?, ?, ?)"));
  HEADRACE_RETURN_IF_ERROR(
      statement.Bind(1, number).Bind(2, step.step()).Bind(3, step.SerializeAsString()).Run());
  HEADRACE_ASSIGN_OR_RETURN(Statement update,
                            writer_->Prepare("UPDATE jobs SET step=? WHERE number=?"));
  return update.Bind(1, step.step()).Bind(2, number).Run();
}

absl::Status JobStore::SaveEvent(const std::string& job_id, v1::JobEvent* event) {
  HEADRACE_ASSIGN_OR_RETURN(const int64_t number, JobNumber(job_id));
  absl::MutexLock lock(&write_mu_);
  HEADRACE_ASSIGN_OR_RETURN(
      const int64_t last,
      writer_->QueryInt(absl::StrCat("SELECT max(id) FROM events WHERE job=", number)));
  event->set_id(last + 1);
  HEADRACE_ASSIGN_OR_RETURN(Statement statement,
                            writer_->Prepare("INSERT INTO events VALUES (?, ?, ?)"));
  return statement.Bind(1, number).Bind(2, last + 1).Bind(3, event->SerializeAsString()).Run();
}

absl::StatusOr<int64_t> JobStore::SaveHashes(const std::string& job_id,
                                             const v1::TensorHashes& hashes) {
  HEADRACE_ASSIGN_OR_RETURN(const int64_t number, JobNumber(job_id));
  absl::MutexLock lock(&write_mu_);
  HEADRACE_ASSIGN_OR_RETURN(
      const int64_t last,
      writer_->QueryInt(absl::StrCat("SELECT max(id) FROM tensor_hashes WHERE job=", number)));
  HEADRACE_ASSIGN_OR_RETURN(Statement statement,
                            writer_->Prepare("INSERT INTO tensor_hashes VALUES (?, ?, ?, ?)"));
  statement.Bind(1, number).Bind(2, last + 1).Bind(3, hashes.step());
  HEADRACE_RETURN_IF_ERROR(statement.Bind(4, hashes.SerializeAsString()).Run());
  return last + 1;
}

absl::Status JobStore::SaveLayerCost(const StoredLayerCost& cost) {
  absl::MutexLock lock(&write_mu_);
  HEADRACE_ASSIGN_OR_RETURN(Statement insert,
                            writer_->Prepare("INSERT OR REPLACE INTO layer_costs (device, layer, "
                                             "seconds) VALUES (?, ?, ?)"));
  insert.Bind(1, cost.device).Bind(2, cost.layer).Bind(3, cost.seconds.SerializeAsString());
  HEADRACE_RETURN_IF_ERROR(insert.Run());
  HEADRACE_ASSIGN_OR_RETURN(Statement drop,
                            writer_->Prepare("DELETE FROM layer_costs WHERE id <= "
                                             "(SELECT max(id) FROM layer_costs) - ?"));
  return drop.Bind(1, int64_t{kKeptLayerCosts}).Run();
}

absl::StatusOr<std::vector<StoredLayerCost>> JobStore::LoadLayerCosts() {
  absl::MutexLock lock(&read_mu_);
  HEADRACE_ASSIGN_OR_RETURN(
      Statement row,
      reader_->Prepare("SELECT device, layer, seconds FROM layer_costs ORDER BY id"));
  std::vector<StoredLayerCost> costs;
  while (true) {
    HEADRACE_ASSIGN_OR_RETURN(const bool found, row.Step());
    if (!found) return costs;
    StoredLayerCost& cost = costs.emplace_back();
    cost.device = row.Blob(0);
    cost.layer = row.Blob(1);
    HEADRACE_RETURN_IF_ERROR(Parse(row, 2, "layer cost", &cost.seconds));
  }
}

absl::Status JobStore::SaveTrace(const std::string& job_id, const v1::JobTrace& trace) {
  HEADRACE_ASSIGN_OR_RETURN(const int64_t number, JobNumber(job_id));
  absl::MutexLock lock(&write_mu_);
  HEADRACE_ASSIGN_OR_RETURN(
      Statement insert,
      writer_->Prepare("INSERT OR REPLACE INTO traces (job, trace) VALUES (?, ?)"));
  HEADRACE_RETURN_IF_ERROR(insert.Bind(1, number).Bind(2, trace.SerializeAsString()).Run());
  HEADRACE_ASSIGN_OR_RETURN(Statement drop,
                            writer_->Prepare("DELETE FROM traces WHERE id NOT IN "
                                             "(SELECT id FROM traces ORDER BY id DESC LIMIT ?)"));
  return drop.Bind(1, int64_t{kKeptTraces}).Run();
}

absl::StatusOr<v1::JobTrace> JobStore::LoadTrace(const std::string& job_id) {
  HEADRACE_ASSIGN_OR_RETURN(const int64_t number, JobNumber(job_id));
  v1::JobTrace trace;
  absl::MutexLock lock(&read_mu_);
  HEADRACE_ASSIGN_OR_RETURN(Statement row,
                            reader_->Prepare("SELECT trace FROM traces WHERE job=?"));
  HEADRACE_ASSIGN_OR_RETURN(const bool found, row.Bind(1, number).Step());
  if (found) HEADRACE_RETURN_IF_ERROR(Parse(row, 0, "trace", &trace));
  return trace;
}

absl::StatusOr<std::string> JobStore::FindJob(const std::string& id_or_name) {
  absl::MutexLock lock(&read_mu_);
  if (absl::StatusOr<int64_t> number = JobNumber(id_or_name); number.ok()) {
    HEADRACE_ASSIGN_OR_RETURN(Statement by_id,
                              reader_->Prepare("SELECT number FROM jobs WHERE number=?"));
    HEADRACE_ASSIGN_OR_RETURN(const bool found, by_id.Bind(1, *number).Step());
    if (found) return id_or_name;
  }
  HEADRACE_ASSIGN_OR_RETURN(Statement by_name,
                            reader_->Prepare("SELECT max(number) FROM jobs WHERE name=?"));
  HEADRACE_ASSIGN_OR_RETURN(const bool row, by_name.Bind(1, id_or_name).Step());
  if (!row || by_name.Int(0) == 0) {
    return absl::NotFoundError(absl::StrCat("there is no job \"", id_or_name, "\""));
  }
  return absl::StrCat("j", by_name.Int(0));
}

absl::StatusOr<StoredJob> JobStore::LoadWhole(int64_t number) {
  StoredJob stored;
  HEADRACE_ASSIGN_OR_RETURN(Statement row,
                            reader_->Prepare("SELECT job, options, step FROM jobs WHERE number=?"));
  HEADRACE_ASSIGN_OR_RETURN(const bool found, row.Bind(1, number).Step());
  if (!found) return absl::NotFoundError(absl::StrCat("there is no job j", number));
  HEADRACE_RETURN_IF_ERROR(Parse(row, 0, "job", &stored.job));
  HEADRACE_RETURN_IF_ERROR(Parse(row, 1, "set of job options", &stored.options));
  stored.job.set_step(row.Int(2));
  HEADRACE_ASSIGN_OR_RETURN(
      Statement plan, reader_->Prepare("SELECT plan FROM plans WHERE job=? AND generation=?"));
  plan.Bind(1, number).Bind(2, stored.job.generation());
  HEADRACE_ASSIGN_OR_RETURN(const bool planned, plan.Step());
  if (planned) HEADRACE_RETURN_IF_ERROR(Parse(plan, 0, "plan", stored.job.mutable_plan()));
  HEADRACE_ASSIGN_OR_RETURN(
      Statement records,
      reader_->Prepare("SELECT record FROM flight_records WHERE job=? ORDER BY place"));
  records.Bind(1, number);
  while (true) {
    HEADRACE_ASSIGN_OR_RETURN(const bool more, records.Step());
    if (!more) break;
    HEADRACE_RETURN_IF_ERROR(Parse(records, 0, "flight record", stored.job.add_flight_records()));
  }
  return stored;
}

absl::StatusOr<StoredJob> JobStore::LoadJob(const std::string& job_id) {
  HEADRACE_ASSIGN_OR_RETURN(const int64_t number, JobNumber(job_id));
  absl::MutexLock lock(&read_mu_);
  return LoadWhole(number);
}

absl::StatusOr<std::vector<v1::Job>> JobStore::ListJobs() {
  absl::MutexLock lock(&read_mu_);
  HEADRACE_ASSIGN_OR_RETURN(Statement rows,
                            reader_->Prepare("SELECT job, step FROM jobs ORDER BY number DESC"));
  std::vector<v1::Job> jobs;
  while (true) {
    HEADRACE_ASSIGN_OR_RETURN(const bool more, rows.Step());
    if (!more) return jobs;
    HEADRACE_RETURN_IF_ERROR(Parse(rows, 0, "job", &jobs.emplace_back()));
    jobs.back().set_step(rows.Int(1));
  }
}

absl::StatusOr<std::vector<StoredJob>> JobStore::LoadLiving() {
  absl::MutexLock lock(&read_mu_);
  HEADRACE_ASSIGN_OR_RETURN(Statement rows,
                            reader_->Prepare("SELECT number FROM jobs WHERE state NOT IN (?, ?, ?) "
                                             "ORDER BY number"));
  rows.Bind(1, int64_t{v1::JOB_STATE_DONE}).Bind(2, int64_t{v1::JOB_STATE_FAILED});
  rows.Bind(3, int64_t{v1::JOB_STATE_CANCELLED});
  std::vector<StoredJob> jobs;
  while (true) {
    HEADRACE_ASSIGN_OR_RETURN(const bool more, rows.Step());
    if (!more) return jobs;
    HEADRACE_ASSIGN_OR_RETURN(jobs.emplace_back(), LoadWhole(rows.Int(0)));
  }
}

absl::StatusOr<int64_t> JobStore::LastJobNumber() {
  absl::MutexLock lock(&read_mu_);
  return reader_->QueryInt("SELECT max(number) FROM jobs");
}

absl::StatusOr<std::vector<v1::StepResult>> JobStore::LoadSteps(const std::string& job_id,
                                                                int64_t after_step, int64_t limit) {
  HEADRACE_ASSIGN_OR_RETURN(const int64_t number, JobNumber(job_id));
  absl::MutexLock lock(&read_mu_);
  HEADRACE_ASSIGN_OR_RETURN(Statement rows,
                            reader_->Prepare("SELECT result FROM steps WHERE job=? AND step>? "
                                             "ORDER BY step LIMIT ?"));
  rows.Bind(1, number).Bind(2, after_step).Bind(3, limit == 0 ? int64_t{-1} : limit);
  std::vector<v1::StepResult> steps;
  while (true) {
    HEADRACE_ASSIGN_OR_RETURN(const bool more, rows.Step());
    if (!more) return steps;
    HEADRACE_RETURN_IF_ERROR(Parse(rows, 0, "step", &steps.emplace_back()));
  }
}

absl::StatusOr<std::vector<v1::JobEvent>> JobStore::LoadEvents(const std::string& job_id,
                                                               int64_t after_event, int64_t limit) {
  HEADRACE_ASSIGN_OR_RETURN(const int64_t number, JobNumber(job_id));
  absl::MutexLock lock(&read_mu_);
  HEADRACE_ASSIGN_OR_RETURN(
      Statement rows,
      reader_->Prepare("SELECT event, id FROM events WHERE job=? AND id>? ORDER BY id LIMIT ?"));
  rows.Bind(1, number).Bind(2, after_event).Bind(3, limit == 0 ? int64_t{-1} : limit);
  std::vector<v1::JobEvent> events;
  while (true) {
    HEADRACE_ASSIGN_OR_RETURN(const bool more, rows.Step());
    if (!more) return events;
    HEADRACE_RETURN_IF_ERROR(Parse(rows, 0, "event", &events.emplace_back()));
    events.back().set_id(rows.Int(1));
  }
}

absl::StatusOr<std::vector<StoredHashes>> JobStore::LoadHashes(const std::string& job_id,
                                                               int64_t after_step, int64_t after_id,
                                                               int64_t limit) {
  HEADRACE_ASSIGN_OR_RETURN(const int64_t number, JobNumber(job_id));
  absl::MutexLock lock(&read_mu_);
  HEADRACE_ASSIGN_OR_RETURN(Statement rows,
                            reader_->Prepare("SELECT hashes, id FROM tensor_hashes WHERE job=? AND "
                                             "step>? AND id>? ORDER BY id LIMIT ?"));
  rows.Bind(1, number).Bind(2, after_step).Bind(3, after_id);
  rows.Bind(4, limit == 0 ? int64_t{-1} : limit);
  std::vector<StoredHashes> all;
  while (true) {
    HEADRACE_ASSIGN_OR_RETURN(const bool more, rows.Step());
    if (!more) return all;
    HEADRACE_RETURN_IF_ERROR(Parse(rows, 0, "tensor hash", &all.emplace_back().hashes));
    all.back().id = rows.Int(1);
  }
}

}  // namespace headrace
