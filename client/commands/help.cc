#include "absl/strings/str_cat.h"
#include "client/commands/command.h"

namespace headrace {
namespace {

const CLI::App* FindCommand(const CLI::App& app, const std::string& name) {
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_name() == name) return command;
  }
  return nullptr;
}

}  // namespace

void AddHelp(CLI::App* app, CommandLine* line) {
  CLI::App* command = app->add_subcommand("help", "Explain a command");
  const auto name = std::make_shared<std::string>();
  command->add_option("command", *name, "Which one; without it, all")->type_name("COMMAND");
  command->callback([app, line, name] {
    line->action = [app, name](const Environment& environment) -> absl::Status {
      const CLI::App* about = name->empty() ? app : FindCommand(*app, *name);
      if (about == nullptr) {
        return absl::InvalidArgumentError(
            absl::StrCat("no command ", *name, "; see headrace help"));
      }
      *environment.console.out << about->help(about == app ? "" : "headrace");
      return absl::OkStatus();
    };
  });
}

}  // namespace headrace
