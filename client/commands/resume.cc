#include "absl/strings/str_cat.h"
#include "client/commands/command.h"
#include "client/render/json.h"
#include "client/submission.h"
#include "common/status.h"

namespace headrace {
namespace {

struct ResumeOptions {
  std::string job;
  bool watch = false;
};

absl::Status Resume(const CommandLine& line, const ResumeOptions& options,
                    const Environment& environment) {
  HEADRACE_ASSIGN_OR_RETURN(const WaitOptions wait, line.Following(environment));
  HEADRACE_ASSIGN_OR_RETURN(const auto coordinator, ConnectFrom(line));
  v1::ResumeJobRequest request;
  request.set_job(options.job);
  HEADRACE_ASSIGN_OR_RETURN(const v1::ResumeJobResponse response,
                            coordinator->Call(&v1::CoordinatorService::Stub::ResumeJob, request));
  const Console& console = environment.console;
  if (line.format() == Format::kText) {
    console.Say(absl::StrCat("job ", response.job_id(), " goes on from ",
                             response.from_step() == 0
                                 ? "the beginning"
                                 : absl::StrCat("its checkpoint after step ", response.from_step()),
                             response.message().empty() ? "" : ": ", response.message()));
  } else if (options.watch) {
    *console.out << PrintLine(ToJson(response)) << std::flush;
  } else {
    *console.out << Print(ToJson(response), line.format());
  }
  if (!options.watch) return absl::OkStatus();
  return WatchQueued(coordinator.get(), response.job_id(), wait, line.format(), environment);
}

}  // namespace

void AddResume(CLI::App* app, CommandLine* line) {
  CLI::App* command = app->add_subcommand(
      "resume", "Let a paused, failed or cancelled job go on from its last good checkpoint");
  const auto options = std::make_shared<ResumeOptions>();
  command->add_option("job", options->job, "Id or name")->required()->type_name("JOB");
  command->add_flag("-w,--watch", options->watch, "Follow it to its end; Ctrl-C leaves it running");
  AddClusterOptions(command, line);
  AddOutputOption(command, line);
  AddTimeoutOption(command, line, "Stop watching after this long (exit code 124)");
  AddReconnectOption(command, line);
  command->callback([line, options] {
    line->action = [line, options](const Environment& environment) {
      return Resume(*line, *options, environment);
    };
  });
}

}  // namespace headrace
