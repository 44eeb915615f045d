#include "client/completion.h"

#include "client/commands/command.h"

namespace headrace {

void AddCompletion(CLI::App* app, CommandLine* line) {
  CLI::App* command = app->add_subcommand(
      "completion",
      "Print a shell's completion script, such as for `source <(headrace completion "
      "bash)`");
  const auto shell = std::make_shared<std::string>();
  command->add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}))
      ->type_name("SHELL");
  command->callback([app, line, shell] {
    line->action = [app, shell](const Environment& environment) {
      *environment.console.out << (*shell == "bash"  ? BashCompletion(*app)
                                   : *shell == "zsh" ? ZshCompletion(*app)
                                                     : FishCompletion(*app));
      return absl::OkStatus();
    };
  });
}

}  // namespace headrace
