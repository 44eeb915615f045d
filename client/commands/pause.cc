#include "absl/strings/str_cat.h"
#include "client/commands/command.h"
#include "client/render/job.h"
#include "common/status.h"

namespace headrace {
namespace {

struct PauseOptions {
  std::string job;
  bool no_wait = false;
};

absl::StatusOr<bool> HasPaused(Coordinator* coordinator, const std::string& id, v1::Job* job) {
  HEADRACE_ASSIGN_OR_RETURN(*job, coordinator->GetJob(id));
  if (!HasEnded(job->state())) return job->state() == v1::JOB_STATE_PAUSED;
  return absl::FailedPreconditionError(
      absl::StrCat("job ", id, " (", job->name(),
                   ") ended before it could be paused: ", StateWord(job->state())));
}

absl::Status Pause(const CommandLine& line, const PauseOptions& options,
                   const Environment& environment) {
  HEADRACE_ASSIGN_OR_RETURN(const WaitOptions wait, line.Waiting(environment));
  HEADRACE_ASSIGN_OR_RETURN(const auto coordinator, ConnectFrom(line));
  v1::PauseJobRequest request;
  request.set_job(options.job);
  HEADRACE_ASSIGN_OR_RETURN(const v1::PauseJobResponse asked,
                            coordinator->Call(&v1::CoordinatorService::Stub::PauseJob, request));
  const std::string& id = asked.job_id();
  if (options.no_wait) {
    environment.console.Say(absl::StrCat("asked job ", id, " to pause after the step at hand"));
    return absl::OkStatus();
  }
  v1::Job job;
  HEADRACE_RETURN_IF_ERROR(coordinator->WaitUntil(absl::StrCat("the pause of job ", id), wait, [&] {
    return HasPaused(coordinator.get(), id, &job);
  }));
  environment.console.Say(absl::StrCat("job ", id, " (", job.name(), ") is paused after step ",
                                       job.step(), "; it goes on with `headrace resume ", id, "`"));
  return absl::OkStatus();
}

}  // namespace

void AddPause(CLI::App* app, CommandLine* line) {
  CLI::App* command = app->add_subcommand(
      "pause", "Take a job off its workers at a checkpoint, or out of the queue, until `resume`");
  const auto options = std::make_shared<PauseOptions>();
  command->add_option("job", options->job, "Id or name")->required()->type_name("JOB");
  AddWaitOptions(command, line, &options->no_wait);
  AddClusterOptions(command, line);
  command->callback([line, options] {
    line->action = [line, options](const Environment& environment) {
      return Pause(*line, *options, environment);
    };
  });
}

}  // namespace headrace
