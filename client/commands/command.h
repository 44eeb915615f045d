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

// One command line. Options given before the command and after it mean the same.
struct CommandLine {
  std::string coordinator;  // --coordinator
  std::string state_dir;    // --state-dir
  std::string output = "text";
  std::string timeout;  // --timeout
  // What the parsed command does. A job that failed is ABORTED; see exit_code.h for the rest.
  std::function<absl::Status(const Environment&)> action;

  Format format() const;
  // When --timeout runs out; never, without it. INVALID_ARGUMENT shows the forms.
  absl::StatusOr<absl::Time> Deadline() const;
};

void AddClusterOptions(CLI::App* app, CommandLine* line);  // --coordinator, --state-dir
void AddStateDirOption(CLI::App* app, CommandLine* line);
void AddOutputOption(CLI::App* app, CommandLine* line);
void AddTimeoutOption(CLI::App* app, CommandLine* line, const std::string& what);

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
void AddCancel(CLI::App* app, CommandLine* line);
void AddWorkers(CLI::App* app, CommandLine* line);
void AddPlan(CLI::App* app, CommandLine* line);
void AddTrace(CLI::App* app, CommandLine* line);
void AddVerify(CLI::App* app, CommandLine* line);
void AddGenerate(CLI::App* app, CommandLine* line);
void AddCompletion(CLI::App* app, CommandLine* line);
void AddVersion(CLI::App* app, CommandLine* line);
void AddHelp(CLI::App* app, CommandLine* line);

}  // namespace headrace
