#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/commands/command.h"
#include "client/job_spans.h"
#include "client/output_file.h"
#include "client/picture/chrome_trace.h"
#include "client/picture/gantt.h"
#include "client/picture/trace_gantt.h"
#include "common/status.h"

namespace headrace {
namespace {

struct TraceOptions {
  std::string job;
  std::string steps;
  std::string output;  // Chrome trace
  std::string svg;
};

struct StepRange {
  int64_t first = 0;  // 0 to 0: the last one
  int64_t last = 0;
};

// "7", "5..9", or nothing.
absl::StatusOr<StepRange> ParseSteps(const std::string& text) {
  StepRange range;
  if (text.empty()) return range;
  const std::vector<std::string> ends = absl::StrSplit(text, "..");
  const bool numbers = ends.size() <= 2 && absl::SimpleAtoi(ends.front(), &range.first) &&
                       absl::SimpleAtoi(ends.back(), &range.last);
  if (numbers && range.first >= 1 && range.last >= range.first) return range;
  return absl::InvalidArgumentError(
      absl::StrCat("--steps ", text,
                   ": write a step or a range, such as 7 or 5..9; steps count "
                   "from 1"));
}

absl::Status CheckTraceOptions(const CommandLine& line, const TraceOptions& options) {
  if (line.output != "text") {
    return absl::InvalidArgumentError("`trace` takes -o FILE after the command, not a format");
  }
  if (options.output.empty() && options.svg.empty()) {
    return absl::InvalidArgumentError("say where to: -o FILE (a Chrome trace), --svg FILE or both");
  }
  if (options.output == "-" && options.svg == "-") {
    return absl::InvalidArgumentError("-o - and --svg -: only one can go to stdout");
  }
  return absl::OkStatus();
}

absl::Status Trace(const CommandLine& line, const TraceOptions& options,
                   const Environment& environment) {
  HEADRACE_RETURN_IF_ERROR(CheckTraceOptions(line, options));
  HEADRACE_ASSIGN_OR_RETURN(const StepRange steps, ParseSteps(options.steps));
  HEADRACE_ASSIGN_OR_RETURN(const auto coordinator, ConnectFrom(line));
  HEADRACE_ASSIGN_OR_RETURN(const v1::Job job, coordinator->GetJob(options.job));
  HEADRACE_ASSIGN_OR_RETURN(const JobSpans spans,
                            FetchSpans(coordinator.get(), job, steps.first, steps.last));
  std::string svg;
  if (!options.svg.empty()) {
    HEADRACE_ASSIGN_OR_RETURN(svg, DrawGantt(TraceGantt(job, spans)));
  }
  if (!options.output.empty()) {
    HEADRACE_RETURN_IF_ERROR(
        WriteOutput("-o", options.output, ChromeTrace(job, spans), environment.console));
  }
  if (svg.empty()) return absl::OkStatus();
  return WriteOutput("--svg", options.svg, svg, environment.console);
}

}  // namespace

void AddTrace(CLI::App* app, CommandLine* line) {
  CLI::App* command =
      app->add_subcommand("trace",
                          "Show what every stage did in some steps: actions, sends, receives, "
                          "waits, on one clock. Of a "
                          "running job, or one of the last that ended; recent steps are kept");
  const auto options = std::make_shared<TraceOptions>();
  command->add_option("job", options->job, "Id or name")->required()->type_name("JOB");
  command
      ->add_option("--steps", options->steps,
                   "A step or a range, such as 7 or 5..9 (default: the last)")
      ->type_name("STEPS");
  command
      ->add_option("-o,--output", options->output,
                   "Write a Chrome trace (JSON, for ui.perfetto.dev) here; - is stdout")
      ->type_name("FILE");
  command->add_option("--svg", options->svg, "Draw the stages' time here; - is stdout")
      ->type_name("FILE");
  AddClusterOptions(command, line);
  command->callback([line, options] {
    line->action = [line, options](const Environment& environment) {
      return Trace(*line, *options, environment);
    };
  });
}

}  // namespace headrace
