#include "coordinator/store/job_store.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "coordinator/store/row.h"

namespace headrace {

absl::StatusOr<int64_t> JobNumber(const std::string& job_id) {
  int64_t number = 0;
  if (job_id.size() < 2 || job_id.size() > 19 || job_id[0] != 'j' || job_id[1] < '1' ||
      job_id[1] > '9' || !absl::SimpleAtoi(job_id.substr(1), &number)) {
    return absl::InvalidArgumentError(absl::StrCat("\"", job_id, "\" is not a job id"));
  }
  return number;
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
  bare.clear_checkpoints();
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
  HEADRACE_RETURN_IF_ERROR(SaveUsesOfJob(number, job));
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
  // Of an earlier generation of more stages, or of an end that was not the last.
  HEADRACE_ASSIGN_OR_RETURN(
      Statement drop, writer_->Prepare("DELETE FROM flight_records WHERE job=? AND place>=?"));
  drop.Bind(1, number).Bind(2, int64_t{job.flight_records_size()});
  HEADRACE_RETURN_IF_ERROR(drop.Run());
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
    HEADRACE_RETURN_IF_ERROR(ParseColumn(row, 2, "layer cost", &cost.seconds));
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
  if (found) HEADRACE_RETURN_IF_ERROR(ParseColumn(row, 0, "trace", &trace));
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
  HEADRACE_RETURN_IF_ERROR(ParseColumn(row, 0, "job", &stored.job));
  HEADRACE_RETURN_IF_ERROR(ParseColumn(row, 1, "set of job options", &stored.options));
  stored.job.set_step(row.Int(2));
  HEADRACE_ASSIGN_OR_RETURN(
      Statement plan, reader_->Prepare("SELECT plan FROM plans WHERE job=? AND generation=?"));
  plan.Bind(1, number).Bind(2, stored.job.generation());
  HEADRACE_ASSIGN_OR_RETURN(const bool planned, plan.Step());
  if (planned) HEADRACE_RETURN_IF_ERROR(ParseColumn(plan, 0, "plan", stored.job.mutable_plan()));
  HEADRACE_ASSIGN_OR_RETURN(
      Statement records,
      reader_->Prepare("SELECT record FROM flight_records WHERE job=? ORDER BY place"));
  records.Bind(1, number);
  while (true) {
    HEADRACE_ASSIGN_OR_RETURN(const bool more, records.Step());
    if (!more) break;
    HEADRACE_RETURN_IF_ERROR(
        ParseColumn(records, 0, "flight record", stored.job.add_flight_records()));
  }
  HEADRACE_RETURN_IF_ERROR(LoadCheckpoints(number, &stored.job));
  return stored;
}

absl::StatusOr<StoredJob> JobStore::LoadJob(const std::string& job_id) {
  HEADRACE_ASSIGN_OR_RETURN(const int64_t number, JobNumber(job_id));
  absl::MutexLock lock(&read_mu_);
  return LoadWhole(number);
}

absl::StatusOr<StoredJob> JobStore::LoadToGoOn(const std::string& job_id) {
  HEADRACE_ASSIGN_OR_RETURN(const int64_t number, JobNumber(job_id));
  absl::MutexLock lock(&read_mu_);
  HEADRACE_ASSIGN_OR_RETURN(StoredJob stored, LoadWhole(number));
  HEADRACE_RETURN_IF_ERROR(LoadLastSteps(number, &stored));
  return stored;
}

absl::Status JobStore::LoadLastSteps(int64_t number, StoredJob* stored) {
  HEADRACE_ASSIGN_OR_RETURN(
      Statement rows, reader_->Prepare("SELECT result FROM (SELECT step, result FROM steps WHERE "
                                       "job=? ORDER BY step DESC LIMIT ?) ORDER BY step"));
  rows.Bind(1, number).Bind(2, kLastSteps);
  while (true) {
    HEADRACE_ASSIGN_OR_RETURN(const bool more, rows.Step());
    if (!more) return absl::OkStatus();
    v1::StepResult* step = stored->job.add_steps();
    HEADRACE_RETURN_IF_ERROR(ParseColumn(rows, 0, "step", step));
    step->clear_stage_seconds();
  }
}

absl::StatusOr<std::vector<v1::Job>> JobStore::ListJobs() {
  absl::MutexLock lock(&read_mu_);
  HEADRACE_ASSIGN_OR_RETURN(Statement rows,
                            reader_->Prepare("SELECT job, step FROM jobs ORDER BY number DESC"));
  std::vector<v1::Job> jobs;
  while (true) {
    HEADRACE_ASSIGN_OR_RETURN(const bool more, rows.Step());
    if (!more) return jobs;
    HEADRACE_RETURN_IF_ERROR(ParseColumn(rows, 0, "job", &jobs.emplace_back()));
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
    HEADRACE_RETURN_IF_ERROR(LoadLastSteps(rows.Int(0), &jobs.back()));
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
    HEADRACE_RETURN_IF_ERROR(ParseColumn(rows, 0, "step", &steps.emplace_back()));
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
    HEADRACE_RETURN_IF_ERROR(ParseColumn(rows, 0, "event", &events.emplace_back()));
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
    HEADRACE_RETURN_IF_ERROR(ParseColumn(rows, 0, "tensor hash", &all.emplace_back().hashes));
    all.back().id = rows.Int(1);
  }
}

}  // namespace headrace
