#include "client/commands/command.h"
#include "client/commands/sampling.h"
#include "common/status.h"

namespace headrace {
namespace {

absl::Status Generate(const CommandLine& line, const std::string& name,
                      const SamplingOptions& options, const Environment& environment) {
  HEADRACE_ASSIGN_OR_RETURN(const absl::Time deadline, line.Deadline());
  HEADRACE_ASSIGN_OR_RETURN(const auto coordinator, ConnectFrom(line));
  HEADRACE_ASSIGN_OR_RETURN(const v1::Job job, coordinator->GetJob(name));
  return GenerateText(coordinator.get(), job, options, deadline, line.format(),
                      environment.console.out, environment);
}

}  // namespace

void AddGenerate(CLI::App* app, CommandLine* line) {
  CLI::App* command =
      app->add_subcommand("generate", "Let a trained model go on from a prompt, on free workers");
  const auto job = std::make_shared<std::string>();
  const auto options = std::make_shared<SamplingOptions>();
  command->add_option("job", *job, "Id or name")->required()->type_name("JOB");
  AddSamplingOptions(command, options.get());
  AddClusterOptions(command, line);
  AddOutputOption(command, line);
  AddTimeoutOption(command, line, "Give up after this long (exit code 124)");
  command->callback([line, job, options] {
    line->action = [line, job, options](const Environment& environment) {
      return Generate(*line, *job, *options, environment);
    };
  });
}

}  // namespace headrace
