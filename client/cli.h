// The command line: every command put together, parsed, carried out, and turned into an exit code.
#pragma once

#include <string>
#include <vector>

#include "client/environment.h"
#include "client/exit_code.h"

namespace CLI {
class App;
}

namespace headrace {

struct CommandLine;

// Adds every command and the options they share. `line` receives what was parsed; both outlive use.
void BuildCommands(CLI::App* app, CommandLine* line);

// `arguments` without the program's name. Errors are one sentence on err, "headrace: …".
ExitCode RunClient(const std::vector<std::string>& arguments, const Environment& environment);

}  // namespace headrace
