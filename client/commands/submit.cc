#include "absl/strings/str_cat.h"
#include "client/commands/command.h"
#include "client/render/json.h"
#include "client/submission.h"
#include "common/status.h"

namespace headrace {
namespace {

struct SubmitOptions {
  std::string file, from;
  bool watch = false;
  bool simulate = false;
};

absl::Status SubmitFile(const CommandLine& line, const SubmitOptions& options,
                        const Environment& environment) {
  HEADRACE_ASSIGN_OR_RETURN(const WaitOptions wait, line.Following(environment));
  FromCheckpoint from;
  if (!options.from.empty()) {
    HEADRACE_ASSIGN_OR_RETURN(from, ParseFrom(options.from));
  }
  HEADRACE_ASSIGN_OR_RETURN(const JobFile file, ReadJobFile(options.file));
  HEADRACE_ASSIGN_OR_RETURN(const StateDir state, StateDir::Open(line.state_dir));
  HEADRACE_ASSIGN_OR_RETURN(const PreparedDataset dataset, PrepareDataset(file, state.datasets()));
  HEADRACE_ASSIGN_OR_RETURN(const auto coordinator, ConnectFrom(line));
  v1::JobOptions job_options;
  job_options.set_simulate(options.simulate);
  HEADRACE_ASSIGN_OR_RETURN(
      const v1::SubmitJobResponse response,
      Submit(coordinator.get(), file, dataset, job_options, from, environment));
  const Console& console = environment.console;
  if (line.format() == Format::kText) {
    *console.out << response.job_id() << "\n" << std::flush;
    console.Say(absl::StrCat("submitted ", file.spec.name(), response.message().empty() ? "" : ": ",
                             response.message()));
  } else if (options.watch) {
    *console.out << PrintLine(ToJson(response)) << std::flush;
  } else {
    *console.out << Print(ToJson(response), line.format());
  }
  if (!options.watch) return absl::OkStatus();
  return WatchQueued(coordinator.get(), response.job_id(), wait, line.format(), environment);
}

}  // namespace

void AddSubmit(CLI::App* app, CommandLine* line) {
  CLI::App* command =
      app->add_subcommand("submit", "Put a job into the queue; prints its id on stdout");
  const auto options = std::make_shared<SubmitOptions>();
  command->add_option("file", options->file, "Job file (docs/job-file.md)")
      ->required()
      ->type_name("FILE");
  command->add_flag("-w,--watch", options->watch, "Follow it to its end; Ctrl-C leaves it running");
  AddFromOption(command, &options->from);
  command->add_flag("--simulate", options->simulate,
                    "Run on simulated workers, which take declared time and train nothing");
  AddClusterOptions(command, line);
  AddOutputOption(command, line);
  AddTimeoutOption(command, line, "Stop watching after this long (exit code 124)");
  AddReconnectOption(command, line);
  command->callback([line, options] {
    line->action = [line, options](const Environment& environment) {
      return SubmitFile(*line, *options, environment);
    };
  });
}

}  // namespace headrace
