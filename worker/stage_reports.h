// What one stage tells the coordinator, in order: events that say which stage they are of, lines
// for the job's log, and at most one fault. Thread-safe.
#pragma once

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "headrace/v1/worker.pb.h"
#include "worker/pipeline/flight_recorder.h"
#include "worker/pipeline/span_recorder.h"
#include "worker/pipeline/stage_job.h"
#include "worker/worker_context.h"

namespace headrace {

class StageReports {
 public:
  // `job` and what `context` points to must outlive the object.
  StageReports(const StageJob* job, const WorkerContext& context);

  // Errors as Reporter::Report.
  absl::Status Send(v1::StageEvent event);
  void Log(const std::string& line);  // a line that cannot be told is lost
  // The first one counts, as the stage's end. `sentence` is put behind worker and stage unless it
  // names them; the flight record and what was not traced yet go with it.
  void Fault(const std::string& sentence, v1::StageFailed failed);

  // What the stage did last, and what it did that was not told yet; afterwards it is.
  v1::FlightRecord flight_record() const;
  v1::StageTrace DrainTrace();

  FlightRecorder* recorder() { return &recorder_; }
  SpanRecorder* spans() { return &spans_; }

 private:
  const StageJob& job_;
  const WorkerContext& context_;
  FlightRecorder recorder_;
  SpanRecorder spans_;
  absl::Mutex mu_;
  bool fault_told_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace headrace
