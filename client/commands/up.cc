#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/commands/command.h"
#include "client/commands/local_options.h"
#include "client/render/json.h"
#include "common/flags.h"
#include "common/status.h"

namespace headrace {
namespace {

struct UpOptions {
  LocalOptions local;
  std::string listen;
};

// As a shell would have it.
std::string DownCommand(const std::string& state_dir) {
  if (state_dir.empty()) return "headrace down";
  const auto plain = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains("/._-+~", c);
  };
  if (std::all_of(state_dir.begin(), state_dir.end(), plain)) {
    return absl::StrCat("headrace down --state-dir ", state_dir);
  }
  return absl::StrCat("headrace down --state-dir '",
                      absl::StrReplaceAll(state_dir, {{"'", "'\\''"}}), "'");
}

absl::Status Up(const CommandLine& line, const UpOptions& options, const Environment& environment) {
  HEADRACE_ASSIGN_OR_RETURN(LocalClusterOptions cluster_options,
                            ToClusterOptions(options.local, environment));
  if (!options.listen.empty()) {
    HEADRACE_RETURN_IF_ERROR(Annotate(CheckAddress(options.listen), "--listen"));
  }
  cluster_options.listen = options.listen;
  cluster_options.die_with_parent = false;
  HEADRACE_ASSIGN_OR_RETURN(const StateDir state, StateDir::Open(line.state_dir));
  // While it starts, Ctrl-C takes down what stands.
  const Interrupt::Listener listener(environment.interrupt, [] {});
  HEADRACE_ASSIGN_OR_RETURN(const auto cluster,
                            LocalCluster::Start(state, cluster_options, environment.interrupt));
  const std::string address = cluster->coordinator()->address();
  HEADRACE_RETURN_IF_ERROR(cluster->Release());
  const Console& console = environment.console;
  if (line.format() == Format::kText) {
    *console.out << address << "\n" << std::flush;
    console.Say(absl::StrCat("coordinator and ", options.local.workers,
                             options.local.workers == 1 ? " worker run" : " workers run",
                             "; logs in ", state.root(), "/logs; stop them with `",
                             DownCommand(line.state_dir), "`"));
  } else {
    *console.out << Print(Json{{"coordinator", address}, {"workers", options.local.workers}},
                          line.format());
  }
  return absl::OkStatus();
}

}  // namespace

void AddUp(CLI::App* app, CommandLine* line) {
  CLI::App* command = app->add_subcommand(
      "up", "Start a coordinator and workers on this machine and leave them running");
  const auto options = std::make_shared<UpOptions>();
  AddLocalOptions(command, &options->local);
  command
      ->add_option("--listen", options->listen,
                   "Address of the coordinator, such as 0.0.0.0:7070, where workers of other "
                   "machines are to join (default: a Unix socket)")
      ->type_name("ADDRESS");
  AddStateDirOption(command, line);
  AddOutputOption(command, line);
  command->callback([line, options] {
    line->action = [line, options](const Environment& environment) {
      return Up(*line, *options, environment);
    };
  });
}

}  // namespace headrace
