#include "client/commands/command.h"
#include "client/render/job.h"
#include "client/render/json.h"
#include "common/status.h"

namespace headrace {
namespace {

absl::Status Workers(const CommandLine& line, const Environment& environment) {
  HEADRACE_ASSIGN_OR_RETURN(const auto coordinator, ConnectFrom(line));
  HEADRACE_ASSIGN_OR_RETURN(
      const v1::ListWorkersResponse response,
      coordinator->Call(&v1::CoordinatorService::Stub::ListWorkers, v1::ListWorkersRequest()));
  const Console& console = environment.console;
  if (line.format() != Format::kText) {
    *console.out << Print(ToJson(response)["workers"], line.format());
  } else if (response.workers().empty()) {
    console.Say("no workers; start one with `headrace-worker --coordinator " +
                coordinator->address() + "`");
  } else {
    *console.out << RenderWorkerTable(response, console.TableWidth());
  }
  return absl::OkStatus();
}

}  // namespace

void AddWorkers(CLI::App* app, CommandLine* line) {
  CLI::App* command = app->add_subcommand("workers", "List workers and what they do");
  AddClusterOptions(command, line);
  AddOutputOption(command, line);
  command->callback([line] {
    line->action = [line](const Environment& environment) { return Workers(*line, environment); };
  });
}

}  // namespace headrace
