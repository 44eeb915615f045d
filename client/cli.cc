#include "client/cli.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/commands/command.h"
#include "client/job_keys.h"

namespace headrace {
namespace {

constexpr char kAbout[] =
    "Headrace trains neural networks that do not fit one machine, as a pipeline over many.";

// As of `headrace list | head -1`: it has what it wanted.
bool ReaderHasGone() {
  pollfd out{STDOUT_FILENO, POLLOUT, 0};
  return poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
}

ExitCode ReportStatus(const absl::Status& status, const Console& console) {
  if (!status.ok()) {
    std::string message = Printable(std::string(status.message()));
    if (message.empty()) message = status.ToString();
    console.Say(absl::StrCat(console.Red("headrace:"), " ", message));
  }
  return ExitCodeOf(status);
}

// "unknown command 'trian', did you mean run?" where the first word is no command.
std::string ExplainParseError(const CLI::App& app, const std::vector<std::string>& arguments,
                              const CLI::ParseError& error) {
  if (app.get_subcommands().empty() && !arguments.empty() && !absl::StartsWith(arguments[0], "-")) {
    std::vector<std::string> names;
    for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
      names.push_back(command->get_name());
    }
    const std::string hint = Nearest(arguments[0], names);
    return absl::StrCat("unknown command '", arguments[0], "'",
                        hint.empty() ? "" : absl::StrCat(", did you mean ", hint, "?"));
  }
  return error.what();
}

// CLI11 reports by throwing; nothing of that leaves this function.
absl::Status Parse(CLI::App* app, const std::vector<std::string>& arguments, const Console& console,
                   bool* done) {
  try {
    // CLI11 takes them from the back.
    app->parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    const auto chosen = app->get_subcommands();
    *console.out << (chosen.empty() ? app->help() : chosen[0]->help("headrace"));
    *done = true;
  } catch (const CLI::CallForVersion& version) {
    *console.out << version.what() << "\n";
    *done = true;
  } catch (const CLI::ParseError& error) {
    const auto chosen = app->get_subcommands();
    return absl::InvalidArgumentError(
        absl::StrCat(ExplainParseError(*app, arguments, error), "; see headrace ",
                     chosen.empty() ? "" : absl::StrCat(chosen[0]->get_name(), " "), "--help"));
  }
  return absl::OkStatus();
}

}  // namespace

void BuildCommands(CLI::App* app, CommandLine* line) {
  app->name("headrace");
  app->description(kAbout);
  app->footer(kExitCodeHelp);
  app->require_subcommand(1, 1);
  app->set_version_flag("--version", "headrace " HEADRACE_VERSION, "Print the version");
  AddClusterOptions(app, line);
  AddOutputOption(app, line);
  AddRun(app, line);
  AddUp(app, line);
  AddDown(app, line);
  AddSubmit(app, line);
  AddList(app, line);
  AddDescribe(app, line);
  AddWatch(app, line);
  AddLogs(app, line);
  AddCheckpoint(app, line);
  AddPause(app, line);
  AddResume(app, line);
  AddCancel(app, line);
  AddWorkers(app, line);
  AddCordon(app, line);
  AddDrain(app, line);
  AddPlan(app, line);
  AddTrace(app, line);
  AddVerify(app, line);
  AddGenerate(app, line);
  AddCompletion(app, line);
  AddVersion(app, line);
  AddHelp(app, line);
}

ExitCode RunClient(const std::vector<std::string>& arguments, const Environment& environment) {
  CLI::App app;
  CommandLine line;
  BuildCommands(&app, &line);
  const Console& console = environment.console;
  if (arguments.empty()) {
    *console.err << app.help();
    return ExitCode::kUsage;
  }
  bool done = false;
  absl::Status status = Parse(&app, arguments, console, &done);
  if (status.ok() && !done) status = line.action(environment);
  console.out->flush();
  if (status.ok() && !console.out->good()) {
    if (ReaderHasGone()) return ExitCode::kDone;
    status = absl::AbortedError("cannot write to stdout");
  }
  return ReportStatus(status, console);
}

}  // namespace headrace
