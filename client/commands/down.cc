#include "absl/strings/str_cat.h"
#include "client/commands/command.h"
#include "client/local_cluster.h"
#include "common/status.h"

namespace headrace {
namespace {

absl::Status Down(const CommandLine& line, const Environment& environment) {
  HEADRACE_ASSIGN_OR_RETURN(const StateDir state, StateDir::Open(line.state_dir));
  HEADRACE_ASSIGN_OR_RETURN(const int stopped, StopRecordedCluster(state));
  environment.console.Say(stopped == 0 ? absl::StrCat("nothing runs in ", state.root())
                                       : absl::StrCat("stopped ", stopped,
                                                      " processes; jobs and weights stay in ",
                                                      state.root()));
  return absl::OkStatus();
}

}  // namespace

void AddDown(CLI::App* app, CommandLine* line) {
  CLI::App* command = app->add_subcommand("down", "Stop what `up` started; jobs and weights stay");
  AddStateDirOption(command, line);
  command->callback([line] {
    line->action = [line](const Environment& environment) { return Down(*line, environment); };
  });
}

}  // namespace headrace
