// How many workers of what size `run` and `up` start on this machine.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "client/commands/command.h"
#include "client/local_cluster.h"

namespace headrace {

struct LocalOptions {
  int64_t workers = 2;
  int64_t threads_per_worker = 1;
  std::string memory_limit;
  std::string device;  // as headrace-worker's --device; empty: its default
};

void AddLocalOptions(CLI::App* app, LocalOptions* options);

// INVALID_ARGUMENT: --memory-limit is no size, --device no device.
absl::StatusOr<LocalClusterOptions> ToClusterOptions(const LocalOptions& options,
                                                     const Environment& environment);

// The workers will be simulated.
bool Simulates(const LocalOptions& options);

}  // namespace headrace
