// Shell completion, written from the command tree itself, so that it cannot be stale.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace headrace {

// The scripts print to stdout; docs/cli.md says where to put them. `app` is the root.
std::string BashCompletion(const CLI::App& app);
std::string ZshCompletion(const CLI::App& app);
std::string FishCompletion(const CLI::App& app);

}  // namespace headrace
