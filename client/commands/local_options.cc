#include "client/commands/local_options.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/flags.h"
#include "common/status.h"
#include "plan/sim_device.h"

namespace headrace {

void AddLocalOptions(CLI::App* app, LocalOptions* options) {
  app->add_option("--workers", options->workers, "Worker processes")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{256}))
      ->type_name("N");
  app->add_option("--threads-per-worker", options->threads_per_worker, "Threads of each")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1024}))
      ->type_name("N");
  app->add_option("--memory-limit", options->memory_limit,
                  "Memory each may use, such as 2GiB (default: an equal share of 80 % of what is "
                  "free, on CUDA devices of theirs)")
      ->type_name("SIZE");
  app->add_option("--device", options->device,
                  "Device of each: auto, cpu, cuda, cuda:N, or sim:KEY=VALUE,… such as sim:action=20ms "
                  "(`headrace-worker --help`)")
      ->type_name("DEVICE");
}

namespace {

// What headrace-worker takes besides sim:.
bool IsDevice(const std::string& device) {
  if (device.empty() || device == "auto" || device == "cpu" || device == "cuda") return true;
  int64_t index = 0;
  return absl::StartsWith(device, "cuda:") && absl::SimpleAtoi(device.substr(5), &index) &&
         index >= 0;
}

}  // namespace

absl::StatusOr<LocalClusterOptions> ToClusterOptions(const LocalOptions& options,
                                                     const Environment& environment) {
  LocalClusterOptions cluster;
  cluster.workers = options.workers;
  cluster.threads_per_worker = options.threads_per_worker;
  cluster.binary_dir = environment.binary_dir;
  cluster.device = options.device;
  if (!options.memory_limit.empty()) {
    absl::StatusOr<int64_t> bytes = ParseBytes(options.memory_limit);
    if (bytes.ok() && *bytes <= 0) bytes = absl::InvalidArgumentError("0; expected a size above 0");
    if (!bytes.ok()) return Annotate(bytes.status(), "--memory-limit");
    cluster.memory_limit_bytes = *bytes;
  }
  if (Simulates(options)) {
    const absl::StatusOr<SimFlag> sim = ParseSimFlag(options.device);
    if (!sim.ok()) return Annotate(sim.status(), "--device");
    if (sim->memory_bytes > 0 && cluster.memory_limit_bytes > 0) {
      return absl::InvalidArgumentError(
          "--device: sim: memory= is given, and --memory-limit too; expected one");
    }
  } else if (!IsDevice(options.device)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--device: '", options.device, "'; expected auto, cpu, cuda, cuda:N or sim:KEY=VALUE,…"));
  }
  return cluster;
}

bool Simulates(const LocalOptions& options) { return IsSimFlag(options.device); }

}  // namespace headrace
