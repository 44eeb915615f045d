#include "client/commands/command.h"

#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status.h"

namespace headrace {

Format CommandLine::format() const {
  if (output == "json") return Format::kJson;
  return output == "yaml" ? Format::kYaml : Format::kText;
}

namespace {

enum class Zero { kIsATime, kIsNone };

absl::StatusOr<absl::Duration> ParseTime(const std::string& flag, const std::string& text,
                                         Zero zero) {
  absl::Duration duration;
  double seconds = 0;
  bool read = true;
  if (absl::SimpleAtod(text, &seconds)) {
    read = std::isfinite(seconds);
    duration = absl::Seconds(read ? seconds : 0);
  } else {
    read = absl::ParseDuration(text, &duration);
  }
  const bool fits = duration > absl::ZeroDuration() ||
                    (zero == Zero::kIsATime && duration == absl::ZeroDuration());
  if (read && fits) return duration;
  return absl::InvalidArgumentError(
      absl::StrCat(flag, " ", text, ": not a time; write 30, 90s, 5m or 1h30m"));
}

}  // namespace

absl::StatusOr<absl::Time> CommandLine::Deadline(absl::Duration otherwise) const {
  if (timeout.empty()) return absl::Now() + otherwise;
  HEADRACE_ASSIGN_OR_RETURN(const absl::Duration time,
                            ParseTime("--timeout", timeout, Zero::kIsNone));
  return absl::Now() + time;
}

absl::StatusOr<WaitOptions> CommandLine::Following(const Environment& environment) const {
  WaitOptions options;
  options.interrupt = environment.interrupt;
  HEADRACE_ASSIGN_OR_RETURN(options.deadline, Deadline());
  if (!reconnect.empty()) {
    HEADRACE_ASSIGN_OR_RETURN(options.patience,
                              ParseTime("--reconnect", reconnect, Zero::kIsATime));
  }
  return options;
}

absl::StatusOr<WaitOptions> CommandLine::Waiting(const Environment& environment) const {
  WaitOptions options;
  options.interrupt = environment.interrupt;
  options.patience = absl::InfiniteDuration();
  options.say = [console = environment.console](const std::string& text) { console.Say(text); };
  HEADRACE_ASSIGN_OR_RETURN(options.deadline, Deadline(kWaitTime));
  return options;
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

void AddReconnectOption(CLI::App* app, CommandLine* line) {
  app->add_option("--reconnect", line->reconnect,
                  "Try for so long to reach a coordinator that has gone away (default 10m; then "
                  "exit code 4)")
      ->type_name("TIME");
}

void AddFromOption(CLI::App* app, std::string* from) {
  app->add_option("--from", *from,
                  "Begin from a checkpoint of another job of the same model, and count steps on "
                  "from it: its last good one, or that of a step")
      ->type_name("JOB[@STEP]");
}

void AddWaitOptions(CLI::App* app, CommandLine* line, bool* no_wait) {
  app->add_flag("--no-wait", *no_wait, "Ask, and do not wait until it is done");
  AddTimeoutOption(app, line, "Stop waiting after this long (default 10m; exit code 124)");
}

absl::StatusOr<std::unique_ptr<Coordinator>> ConnectFrom(const CommandLine& line) {
  HEADRACE_ASSIGN_OR_RETURN(const StateDir state, StateDir::Open(line.state_dir));
  HEADRACE_ASSIGN_OR_RETURN(const std::string address, FindCoordinator(line.coordinator, state));
  return Coordinator::Connect(address);
}

}  // namespace headrace
