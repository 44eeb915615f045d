#include "client/submission.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/render/job.h"
#include "client/render/json.h"
#include "client/render/progress.h"
#include "common/status.h"

namespace headrace {
namespace {

// Every update as one line of JSON: {"step": {…}}.
class JsonLines : public JobObserver {
 public:
  explicit JsonLines(std::ostream* out) : out_(out) {}
  void OnJob(const v1::Job& job) override { Write("job", job); }
  void OnStep(const v1::StepResult& step) override { Write("step", step); }
  void OnEvent(const v1::JobEvent& event) override { Write("event", event); }

 private:
  void Write(const char* kind, const google::protobuf::Message& message) {
    *out_ << PrintLine(Json{{kind, ToJson(message)}}) << std::flush;
  }
  std::ostream* const out_;
};

}  // namespace

absl::StatusOr<FromCheckpoint> ParseFrom(const std::string& text) {
  FromCheckpoint from;
  const size_t at = text.find('@');
  from.job = text.substr(0, at);
  const bool step_is_good = at == std::string::npos ||
                            (absl::SimpleAtoi(text.substr(at + 1), &from.step) && from.step > 0);
  if (from.job.empty() || !step_is_good) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--from ", text, ": no checkpoint; write JOB or JOB@STEP, such as j3 or bible@1200"));
  }
  return from;
}

absl::StatusOr<v1::SubmitJobResponse> Submit(Coordinator* coordinator, const JobFile& file,
                                             const PreparedDataset& dataset,
                                             const v1::JobOptions& options,
                                             const FromCheckpoint& from,
                                             const Environment& environment) {
  Progress progress(environment.console);
  HEADRACE_RETURN_IF_ERROR(
      coordinator->Upload(dataset.path, dataset.dataset.sha256(), environment.interrupt,
                          [&](int64_t done, int64_t total) { progress.OnUpload(done, total); }));
  progress.Clear();
  v1::SubmitJobRequest request;
  *request.mutable_spec() = file.spec;
  *request.mutable_dataset() = dataset.dataset;
  *request.mutable_options() = options;
  request.set_from_job(from.job);
  request.set_from_step(from.step);
  return coordinator->Call(&v1::CoordinatorService::Stub::SubmitJob, request);
}

absl::StatusOr<v1::Job> WatchToEnd(Coordinator* coordinator, const std::string& job,
                                   WaitOptions options, Format format,
                                   const Environment& environment) {
  absl::StatusOr<v1::Job> ended;
  if (format != Format::kText) {
    options.say = [&](const std::string& line) { environment.console.Say(line); };
    JsonLines lines(environment.console.out);
    ended = coordinator->FollowJob(job, options, &lines);
  } else {
    Progress progress(environment.console);
    options.say = [&](const std::string& line) { progress.Say(line); };
    ended = coordinator->FollowJob(job, options, &progress);
  }
  if (!ended.ok()) return ended;
  options.say = nullptr;
  return coordinator->GetJobAndSteps(ended->id(), options);
}

absl::Status StillRunning(const absl::Status& status, const std::string& job) {
  if (absl::IsUnavailable(status)) {
    return absl::UnavailableError(
        absl::StrCat(std::string(status.message()),
                     "; its workers train on without it for the time in the "
                     "job's recovery.coordinator_timeout_s; watch it again with `headrace watch ",
                     job, "`"));
  }
  if (!absl::IsCancelled(status) && !absl::IsDeadlineExceeded(status)) return status;
  return absl::Status(status.code(),
                      absl::StrCat(std::string(status.message()),
                                   "; the job goes on, watch it with `headrace watch ", job,
                                   "`, stop it with `headrace cancel ", job, "`"));
}

absl::Status WatchQueued(Coordinator* coordinator, const std::string& job,
                         const WaitOptions& options, Format format,
                         const Environment& environment) {
  const absl::StatusOr<v1::Job> ended = WatchToEnd(coordinator, job, options, format, environment);
  if (!ended.ok()) return StillRunning(ended.status(), job);
  if (ended->state() == v1::JOB_STATE_DONE) environment.console.Say(RenderOutcome(*ended));
  return OutcomeOf(*ended);
}

}  // namespace headrace
