#include "absl/strings/str_cat.h"
#include "client/commands/command.h"
#include "common/status.h"

namespace headrace {
namespace {

absl::Status Cancel(const CommandLine& line, const std::string& job,
                    const Environment& environment) {
  HEADRACE_ASSIGN_OR_RETURN(const auto coordinator, ConnectFrom(line));
  HEADRACE_RETURN_IF_ERROR(coordinator->CancelJob(job));
  environment.console.Say(absl::StrCat("job ", job, " cancelled"));
  return absl::OkStatus();
}

}  // namespace

void AddCancel(CLI::App* app, CommandLine* line) {
  CLI::App* command = app->add_subcommand("cancel", "Stop a job, or take it out of the queue");
  const auto job = std::make_shared<std::string>();
  command->add_option("job", *job, "Id or name")->required()->type_name("JOB");
  AddClusterOptions(command, line);
  command->callback([line, job] {
    line->action = [line, job](const Environment& environment) {
      return Cancel(*line, *job, environment);
    };
  });
}

}  // namespace headrace
