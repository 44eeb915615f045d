// headrace: the client.
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "client/cli.h"
#include "client/console.h"
#include "client/interrupt.h"
#include "common/process.h"

int main(int argc, char** argv) {
  headrace::TuneMalloc();
  headrace::BlockSignals();
  // Never destroyed: its thread waits for signals until the process is gone.
  auto* const interrupt = new headrace::Interrupt;
  interrupt->ListenForSignals();
  headrace::Environment environment;
  environment.console = headrace::Console::OfProcess();
  environment.interrupt = interrupt;
  std::error_code error;
  environment.binary_dir =
      std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
  return static_cast<int>(
      headrace::RunClient(std::vector<std::string>(argv + 1, argv + argc), environment));
}
