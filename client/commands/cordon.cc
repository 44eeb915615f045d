#include "absl/strings/str_cat.h"
#include "client/commands/command.h"
#include "common/status.h"

namespace headrace {
namespace {

absl::Status SetCordoned(const CommandLine& line, const std::string& worker, bool cordoned,
                         const Environment& environment) {
  HEADRACE_ASSIGN_OR_RETURN(const auto coordinator, ConnectFrom(line));
  v1::CordonWorkerRequest request;
  request.set_worker(worker);
  request.set_cordoned(cordoned);
  HEADRACE_RETURN_IF_ERROR(
      coordinator->Call(&v1::CoordinatorService::Stub::CordonWorker, request).status());
  environment.console.Say(cordoned
                              ? absl::StrCat("nothing new is placed on worker ", worker,
                                             "; what it serves goes on there (`headrace drain ",
                                             worker, "` moves it away)")
                              : absl::StrCat("worker ", worker, " takes stages again"));
  return absl::OkStatus();
}

void AddCordonVerb(CLI::App* app, CommandLine* line, const std::string& verb,
                   const std::string& about, bool cordoned) {
  CLI::App* command = app->add_subcommand(verb, about);
  const auto worker = std::make_shared<std::string>();
  command->add_option("worker", *worker, "Its name")->required()->type_name("WORKER");
  AddClusterOptions(command, line);
  command->callback([line, worker, cordoned] {
    line->action = [line, worker, cordoned](const Environment& environment) {
      return SetCordoned(*line, *worker, cordoned, environment);
    };
  });
}

}  // namespace

void AddCordon(CLI::App* app, CommandLine* line) {
  AddCordonVerb(app, line, "cordon", "Place nothing new on a worker", true);
  AddCordonVerb(app, line, "uncordon", "Place stages on a worker again", false);
}

}  // namespace headrace
