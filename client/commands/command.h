// What every command is made of. commands/<verb>.cc adds one subcommand; cli.cc puts them together.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/console.h"
#include "client/coordinator.h"
#include "client/environment.h"
#include "client/state_dir.h"

namespace headrace {

// How long checkpoint, pause and drain wait where --timeout does not say.
inline constexpr absl::Duration kWaitTime = absl::Minutes(10);

// One command line. Options given before the command and after it mean the same.
struct CommandLine {
  std::string coordinator;  // --coordinator
  std::string state_dir;    // --state-dir
  std::string output = "text";
  std::string timeout;    // --timeout
  std::string reconnect;  // --reconnect
  // What the parsed command does. A job that failed is ABORTED; see exit_code.h for the rest.
  std::function<absl::Status(const Environment&)> action;

  Format format() const;
  // When --timeout runs out; `otherwise` from now, without it. INVALID_ARGUMENT shows the forms.
  absl::StatusOr<absl::Time> Deadline(absl::Duration otherwise = absl::InfiniteDuration()) const;
  // For following a job: until --timeout, with as much patience as --reconnect says.
  // INVALID_ARGUMENT as Deadline.
  absl::StatusOr<WaitOptions> Following(const Environment& environment) const;
  // For waiting for one thing: until --timeout (default kWaitTime), however often the coordinator
  // goes and comes. Says on stderr when it does. INVALID_ARGUMENT as Deadline.
  absl::StatusOr<WaitOptions> Waiting(const Environment& environment) const;
};

void AddClusterOptions(CLI::App* app, CommandLine* line);  // --coordinator, --state-dir
void AddStateDirOption(CLI::App* app, CommandLine* line);
void AddOutputOption(CLI::App* app, CommandLine* line);
void AddTimeoutOption(CLI::App* app, CommandLine* line, const std::string& what);
void AddReconnectOption(CLI::App* app, CommandLine* line);             // for what takes Following()
void AddFromOption(CLI::App* app, std::string* from);                  // --from
void AddWaitOptions(CLI::App* app, CommandLine* line, bool* no_wait);  // --no-wait, --timeout

// A coordinator found by FindCoordinator and connected to.
absl::StatusOr<std::unique_ptr<Coordinator>> ConnectFrom(const CommandLine& line);

void AddRun(CLI::App* app, CommandLine* line);
void AddUp(CLI::App* app, CommandLine* line);
void AddDown(CLI::App* app, CommandLine* line);
void AddSubmit(CLI::App* app, CommandLine* line);
void AddList(CLI::App* app, CommandLine* line);
void AddDescribe(CLI::App* app, CommandLine* line);
void AddWatch(CLI::App* app, CommandLine* line);
void AddLogs(CLI::App* app, CommandLine* line);
void AddCheckpoint(CLI::App* app, CommandLine* line);
void AddPause(CLI::App* app, CommandLine* line);
void AddResume(CLI::App* app, CommandLine* line);
void AddCancel(CLI::App* app, CommandLine* line);
void AddWorkers(CLI::App* app, CommandLine* line);
void AddCordon(CLI::App* app, CommandLine* line);  // and uncordon
void AddDrain(CLI::App* app, CommandLine* line);
void AddPlan(CLI::App* app, CommandLine* line);
void AddTrace(CLI::App* app, CommandLine* line);
void AddVerify(CLI::App* app, CommandLine* line);
void AddGenerate(CLI::App* app, CommandLine* line);
void AddCompletion(CLI::App* app, CommandLine* line);
void AddVersion(CLI::App* app, CommandLine* line);
void AddHelp(CLI::App* app, CommandLine* line);

}  // namespace headrace
