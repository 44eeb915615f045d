#include "client/commands/command.h"
#include "client/render/job.h"
#include "client/submission.h"
#include "common/status.h"

namespace headrace {
namespace {

absl::Status Watch(const CommandLine& line, const std::string& job,
                   const Environment& environment) {
  HEADRACE_ASSIGN_OR_RETURN(const WaitOptions options, line.Following(environment));
  HEADRACE_ASSIGN_OR_RETURN(const auto coordinator, ConnectFrom(line));
  const absl::StatusOr<v1::Job> ended =
      WatchToEnd(coordinator.get(), job, options, line.format(), environment);
  if (!ended.ok()) return StillRunning(ended.status(), job);
  if (line.format() == Format::kText && ended->state() == v1::JOB_STATE_DONE) {
    *environment.console.out << RenderOutcome(*ended) << "\n";
  }
  return OutcomeOf(*ended);
}

}  // namespace

void AddWatch(CLI::App* app, CommandLine* line) {
  CLI::App* command = app->add_subcommand(
      "watch", "Follow a job to its end; Ctrl-C leaves it running. -o json: one update a line");
  const auto job = std::make_shared<std::string>();
  command->add_option("job", *job, "Id or name")->required()->type_name("JOB");
  AddClusterOptions(command, line);
  AddOutputOption(command, line);
  AddTimeoutOption(command, line, "Stop watching after this long (exit code 124)");
  AddReconnectOption(command, line);
  command->callback([line, job] {
    line->action = [line, job](const Environment& environment) {
      return Watch(*line, *job, environment);
    };
  });
}

}  // namespace headrace
