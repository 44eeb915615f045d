#include "absl/time/clock.h"
#include "client/commands/command.h"
#include "client/render/job.h"
#include "client/render/json.h"
#include "common/status.h"

namespace headrace {
namespace {

absl::Status List(const CommandLine& line, const Environment& environment) {
  HEADRACE_ASSIGN_OR_RETURN(const auto coordinator, ConnectFrom(line));
  HEADRACE_ASSIGN_OR_RETURN(
      const v1::ListJobsResponse response,
      coordinator->Call(&v1::CoordinatorService::Stub::ListJobs, v1::ListJobsRequest()));
  const Console& console = environment.console;
  if (line.format() != Format::kText) {
    *console.out << Print(ToJson(response)["jobs"], line.format());
  } else if (response.jobs().empty()) {
    console.Say("no jobs");
  } else {
    *console.out << RenderJobTable(response, absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()),
                                   console.TableWidth());
  }
  return absl::OkStatus();
}

}  // namespace

void AddList(CLI::App* app, CommandLine* line) {
  CLI::App* command = app->add_subcommand("list", "List jobs, the newest first");
  AddClusterOptions(command, line);
  AddOutputOption(command, line);
  command->callback([line] {
    line->action = [line](const Environment& environment) { return List(*line, environment); };
  });
}

}  // namespace headrace
