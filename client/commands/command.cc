#include "client/commands/command.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status.h"

namespace headrace {

Format CommandLine::format() const {
  if (output == "json") return Format::kJson;
  return output == "yaml" ? Format::kYaml : Format::kText;
}

absl::StatusOr<absl::Time> CommandLine::Deadline() const {
  if (timeout.empty()) return absl::InfiniteFuture();
  absl::Duration duration;
  double seconds = 0;
  if (absl::SimpleAtod(timeout, &seconds)) {
    duration = absl::Seconds(seconds);
  } else if (!absl::ParseDuration(timeout, &duration)) {
    duration = absl::ZeroDuration();
  }
  if (duration <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--timeout ", timeout, ": not a time; write 30, 90s, 5m or 1h30m"));
  }
  return absl::Now() + duration;
}

void AddStateDirOption(CLI::App* app, CommandLine* line) {
  app->add_option("--state-dir", line->state_dir,
                  "Where local clusters keep their data (default $XDG_STATE_HOME/headrace or "
                  "~/.local/state/headrace)")
      ->type_name("DIR");
}

void AddClusterOptions(CLI::App* app, CommandLine* line) {
  app->add_option(
         "--coordinator", line->coordinator,
         "Address of the coordinator (default $HEADRACE_COORDINATOR, else the cluster that "
         "`headrace up` started)")
      ->type_name("ADDRESS");
  AddStateDirOption(app, line);
}

void AddOutputOption(CLI::App* app, CommandLine* line) {
  app->add_option("-o,--output", line->output, "Form of what goes to stdout: text, json or yaml")
      ->check(CLI::IsMember({"text", "json", "yaml"}))
      ->type_name("FORMAT");
}

void AddTimeoutOption(CLI::App* app, CommandLine* line, const std::string& what) {
  app->add_option("--timeout", line->timeout, what)->type_name("TIME");
}

absl::StatusOr<std::unique_ptr<Coordinator>> ConnectFrom(const CommandLine& line) {
  HEADRACE_ASSIGN_OR_RETURN(const StateDir state, StateDir::Open(line.state_dir));
  HEADRACE_ASSIGN_OR_RETURN(const std::string address, FindCoordinator(line.coordinator, state));
  return Coordinator::Connect(address);
}

}  // namespace headrace
