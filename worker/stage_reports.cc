#include "worker/stage_reports.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/steady_clock.h"

namespace headrace {

StageReports::StageReports(const StageJob* job, const WorkerContext& context)
    : job_(*job), context_(context), spans_(*job) {}

absl::Status StageReports::Send(v1::StageEvent event) {
  event.set_job_id(job_.job_id);
  event.set_generation(job_.generation);
  event.set_stage(job_.stage());
  return context_.reporter->Report(std::move(event));
}

void StageReports::Log(const std::string& line) {
  v1::StageEvent event;
  event.set_log(line);
  if (const absl::Status status = Send(std::move(event)); !status.ok()) {
    LogWarning(absl::StrCat("cannot report: ", status.message()));
  }
}

void StageReports::Fault(const std::string& what, v1::StageFailed failed) {
  {
    absl::MutexLock lock(&mu_);
    if (std::exchange(fault_told_, true)) return;
  }
  const std::string who = absl::StrCat("worker ", job_.worker(), ", stage ", job_.stage());
  const std::string sentence = absl::StartsWith(what, who) ? what : absl::StrCat(who, ": ", what);
  LogError(absl::StrCat("job ", job_.job_id, ": ", sentence));
  recorder_.Record(sentence);
  failed.set_reason(sentence);
  *failed.mutable_flight_record() = flight_record();
  v1::StageEvent event;
  *event.mutable_failed() = std::move(failed);
  *event.mutable_trace() = DrainTrace();
  if (const absl::Status told = Send(std::move(event)); !told.ok()) {
    LogError(absl::StrCat("cannot report the fault: ", told.message()));
  }
}

v1::FlightRecord StageReports::flight_record() const {
  v1::FlightRecord record;
  record.set_worker(job_.worker());
  record.set_stage(job_.stage());
  for (std::string& entry : recorder_.Entries()) record.add_entries(std::move(entry));
  return record;
}

v1::StageTrace StageReports::DrainTrace() {
  v1::StageTrace trace = spans_.Drain();
  if (context_.clock == nullptr) return trace;
  if (const auto estimate = context_.clock->At(SteadyNanos())) {
    trace.set_clock_offset_ns(estimate->offset_ns);
    trace.set_clock_error_ns(estimate->error_ns);
  }
  return trace;
}

}  // namespace headrace
