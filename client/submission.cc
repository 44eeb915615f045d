#include "client/submission.h"

#include "absl/strings/str_cat.h"
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

absl::StatusOr<v1::SubmitJobResponse> Submit(Coordinator* coordinator, const JobFile& file,
                                             const PreparedDataset& dataset,
                                             const v1::JobOptions& options,
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
  return coordinator->Call(&v1::CoordinatorService::Stub::SubmitJob, request);
}

absl::StatusOr<v1::Job> WatchToEnd(Coordinator* coordinator, const std::string& job,
                                   absl::Time deadline, Format format,
                                   const Environment& environment) {
  absl::StatusOr<v1::Job> ended;
  if (format != Format::kText) {
    JsonLines lines(environment.console.out);
    ended = coordinator->FollowJob(job, deadline, environment.interrupt, &lines);
  } else {
    Progress progress(environment.console);
    ended = coordinator->FollowJob(job, deadline, environment.interrupt, &progress);
  }
  if (!ended.ok()) return ended;
  return coordinator->GetJobAndSteps(ended->id());
}

absl::Status StillRunning(const absl::Status& status, const std::string& job) {
  if (!absl::IsCancelled(status) && !absl::IsDeadlineExceeded(status)) return status;
  return absl::Status(status.code(),
                      absl::StrCat(std::string(status.message()),
                                   "; the job goes on, watch it with `headrace watch ", job,
                                   "`, stop it with `headrace cancel ", job, "`"));
}

}  // namespace headrace
