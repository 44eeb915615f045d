// headrace-coordinator: flags and signals; coordinator.h is the rest.
#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/fault_point.h"
#include "common/flags.h"
#include "common/log.h"
#include "common/process.h"
#include "common/status.h"
#include "coordinator/coordinator.h"

namespace {

constexpr int kExitUsage = 2;
constexpr absl::Duration kStopTime = absl::Seconds(1);
constexpr absl::Duration kExitTime = absl::Milliseconds(1900);

struct Flags {
  headrace::CoordinatorOptions options;
  bool die_with_parent = false;
};

void AddFlags(CLI::App* app, Flags* flags) {
  headrace::CoordinatorOptions& options = flags->options;
  app->set_version_flag("--version", "headrace-coordinator " HEADRACE_VERSION);
  app->add_option("--listen", options.listen,
                  "Address to serve on: host:port, port 0 for any, or unix:/path")
      ->capture_default_str()
      ->type_name("ADDRESS");
  app->add_option("--data-dir", options.data_dir, "Folder of jobs, data and weights")
      ->required()
      ->type_name("DIR");
  app->add_option("--metrics", options.metrics, "Serve Prometheus metrics at this host:port")
      ->type_name("HOST:PORT");
  app->add_option("--address-file", options.address_file,
                  "File to write the bound address to, once it serves")
      ->type_name("FILE");
  app->add_flag("--die-with-parent", flags->die_with_parent, "End when the parent process does");
}

// What is wrong with a flag, after CLI11's own checks.
absl::Status CheckFlags(const Flags& flags) {
  HEADRACE_RETURN_IF_ERROR(headrace::ReadFaults());
  const headrace::CoordinatorOptions& options = flags.options;
  HEADRACE_RETURN_IF_ERROR(headrace::Annotate(headrace::CheckAddress(options.listen), "--listen"));
  if (options.metrics.empty()) return absl::OkStatus();
  return headrace::Annotate(headrace::CheckTcpAddress(options.metrics), "--metrics");
}

int Serve(const Flags& flags) {
  auto coordinator = headrace::Coordinator::Start(flags.options);
  if (!coordinator.ok()) {
    headrace::LogError(std::string(coordinator.status().message()));
    return absl::IsInvalidArgument(coordinator.status()) ? kExitUsage : 1;
  }
  headrace::LogInfo(absl::StrCat("serving on ", (*coordinator)->address()));
  const int signal = headrace::WaitForSignal();
  headrace::LogInfo(absl::StrCat("signal ", signal, ": shutting down"));
  // What is to be kept is saved first, in a fraction of that. An RPC that waits for a disk must not
  // hold the rest up until the process is killed.
  std::thread([] {
    absl::SleepFor(kExitTime);
    headrace::LogWarning("an RPC has not ended yet; leaves it");
    std::_Exit(0);
  }).detach();
  (*coordinator)->Stop(kStopTime);
  // Everything is saved and nobody is connected. What is left is the metrics server, whose
  // destructor waits for its next poll, up to 2 s.
  std::_Exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  headrace::TuneMalloc();
  headrace::BlockSignals();
  setenv("GRPC_VERBOSITY", "NONE", 0);  // what went wrong is in statuses
  headrace::SetLogSource("coordinator");
  CLI::App app("Headrace's coordinator: takes jobs, plans them and hands them to workers.");
  Flags flags;
  AddFlags(&app, &flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  if (const absl::Status status = CheckFlags(flags); !status.ok()) {
    std::cerr << "headrace-coordinator: " << status.message() << "\n";
    return kExitUsage;
  }
  if (flags.die_with_parent) headrace::DieWithParent();
  return Serve(flags);
}
