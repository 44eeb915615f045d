#include "client/commands/command.h"
#include "client/render/job.h"
#include "client/render/json.h"
#include "client/submission.h"
#include "common/status.h"

namespace headrace {
namespace {

struct LogsOptions {
  std::string job;
  bool follow = false;
};

// Prints events as they come.
class EventPrinter : public JobObserver {
 public:
  EventPrinter(std::ostream* out, Format format) : out_(out), format_(format) {}
  void OnEvent(const v1::JobEvent& event) override {
    *out_ << (format_ == Format::kText ? RenderEvent(event) + "\n" : PrintLine(ToJson(event)))
          << std::flush;
  }

 private:
  std::ostream* const out_;
  const Format format_;
};

absl::Status Logs(const CommandLine& line, const LogsOptions& options,
                  const Environment& environment) {
  HEADRACE_ASSIGN_OR_RETURN(WaitOptions wait, line.Following(environment));
  wait.say = [&](const std::string& text) { environment.console.Say(text); };
  HEADRACE_ASSIGN_OR_RETURN(const auto coordinator, ConnectFrom(line));
  EventPrinter printer(environment.console.out, line.format());
  if (options.follow) {
    return StillRunning(coordinator->FollowJob(options.job, wait, &printer).status(), options.job);
  }
  v1::ListJobEventsRequest request;
  request.set_job(options.job);
  HEADRACE_ASSIGN_OR_RETURN(
      const v1::ListJobEventsResponse response,
      coordinator->Call(&v1::CoordinatorService::Stub::ListJobEvents, request));
  if (line.format() != Format::kText) {
    *environment.console.out << Print(ToJson(response)["events"], line.format());
    return absl::OkStatus();
  }
  for (const v1::JobEvent& event : response.events()) printer.OnEvent(event);
  return absl::OkStatus();
}

}  // namespace

void AddLogs(CLI::App* app, CommandLine* line) {
  CLI::App* command = app->add_subcommand("logs", "Print what happened to a job");
  const auto options = std::make_shared<LogsOptions>();
  command->add_option("job", options->job, "Id or name")->required()->type_name("JOB");
  command->add_flag("-f,--follow", options->follow, "Go on until the job has ended");
  AddClusterOptions(command, line);
  AddOutputOption(command, line);
  AddReconnectOption(command, line);
  command->callback([line, options] {
    line->action = [line, options](const Environment& environment) {
      return Logs(*line, *options, environment);
    };
  });
}

}  // namespace headrace
