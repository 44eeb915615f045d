#include "client/commands/command.h"
#include "client/render/job.h"
#include "client/render/json.h"
#include "common/status.h"

namespace headrace {
namespace {

absl::Status Describe(const CommandLine& line, const std::string& job,
                      const Environment& environment) {
  HEADRACE_ASSIGN_OR_RETURN(const auto coordinator, ConnectFrom(line));
  HEADRACE_ASSIGN_OR_RETURN(const v1::Job found, coordinator->GetJobAndSteps(job));
  const Console& console = environment.console;
  *console.out << (line.format() == Format::kText ? RenderJob(found, console.TableWidth())
                                                  : Print(ToJson(found), line.format()));
  return absl::OkStatus();
}

}  // namespace

void AddDescribe(CLI::App* app, CommandLine* line) {
  CLI::App* command = app->add_subcommand(
      "describe", "Show all about a job: plan, memory, time, losses, links, failures");
  const auto job = std::make_shared<std::string>();
  command->add_option("job", *job, "Id or name")->required()->type_name("JOB");
  AddClusterOptions(command, line);
  AddOutputOption(command, line);
  command->callback([line, job] {
    line->action = [line, job](const Environment& environment) {
      return Describe(*line, *job, environment);
    };
  });
}

}  // namespace headrace
