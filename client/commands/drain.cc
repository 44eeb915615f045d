#include "absl/strings/str_cat.h"
#include "client/commands/command.h"
#include "client/render/job.h"
#include "common/status.h"

namespace headrace {
namespace {

struct DrainOptions {
  std::string worker;
  bool no_wait = false;
};

// True also once the worker has gone: then nothing is on it.
absl::StatusOr<bool> ServesNothing(Coordinator* coordinator, const std::string& name) {
  HEADRACE_ASSIGN_OR_RETURN(
      const v1::ListWorkersResponse response,
      coordinator->Call(&v1::CoordinatorService::Stub::ListWorkers, v1::ListWorkersRequest()));
  for (const v1::WorkerInfo& worker : response.workers()) {
    if (worker.name() == name && worker.alive()) return worker.job_id().empty();
  }
  return true;
}

absl::Status Drain(const CommandLine& line, const DrainOptions& options,
                   const Environment& environment) {
  HEADRACE_ASSIGN_OR_RETURN(const WaitOptions wait, line.Waiting(environment));
  HEADRACE_ASSIGN_OR_RETURN(const auto coordinator, ConnectFrom(line));
  v1::CordonWorkerRequest request;
  request.set_worker(options.worker);
  request.set_cordoned(true);
  request.set_drain(true);
  HEADRACE_ASSIGN_OR_RETURN(
      const v1::CordonWorkerResponse response,
      coordinator->Call(&v1::CoordinatorService::Stub::CordonWorker, request));
  const Console& console = environment.console;
  const std::string again =
      absl::StrCat("; it takes stages again with `headrace uncordon ", options.worker, "`");
  if (response.job_id().empty()) {
    console.Say(absl::StrCat("worker ", options.worker, " serves nothing", again));
    return absl::OkStatus();
  }
  if (options.no_wait) {
    console.Say(absl::StrCat("job ", response.job_id(), " leaves worker ", options.worker,
                             " after the step at hand", again));
    return absl::OkStatus();
  }
  HEADRACE_RETURN_IF_ERROR(coordinator->WaitUntil(
      absl::StrCat("the move of job ", response.job_id(), " away from worker ", options.worker),
      wait, [&] { return ServesNothing(coordinator.get(), options.worker); }));
  std::string now;
  if (const absl::StatusOr<v1::Job> job = coordinator->GetJob(response.job_id()); job.ok()) {
    now = absl::StrCat(", which is ", StateWord(job->state()), job->message().empty() ? "" : ": ",
                       job->message());
  }
  console.Say(absl::StrCat("worker ", options.worker, " serves nothing any more of job ",
                           response.job_id(), now, again));
  return absl::OkStatus();
}

}  // namespace

void AddDrain(CLI::App* app, CommandLine* line) {
  CLI::App* command = app->add_subcommand(
      "drain", "Move what a worker serves to others, at a checkpoint, and place nothing new on it");
  const auto options = std::make_shared<DrainOptions>();
  command->add_option("worker", options->worker, "Its name")->required()->type_name("WORKER");
  AddWaitOptions(command, line, &options->no_wait);
  AddClusterOptions(command, line);
  command->callback([line, options] {
    line->action = [line, options](const Environment& environment) {
      return Drain(*line, *options, environment);
    };
  });
}

}  // namespace headrace
