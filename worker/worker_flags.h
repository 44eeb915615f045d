// The command line of headrace-worker.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/flags.h"
#include "headrace/v1/cluster.pb.h"

namespace CLI {
class App;
}

namespace headrace {

struct WorkerFlags {
  std::string coordinator, name, listen = "0.0.0.0:0", advertise, device = "auto", memory_limit,
                                 link, data_dir, metrics;
  std::string drain_time = "25s";  // Kubernetes kills a process after 30 s
  absl::Duration drain_duration;   // drain_time, read
  int threads = 1;
  int64_t memory_bytes = 0;  // memory_limit, read; 0: not given
  double memory_share = 0;   // 0: not given
  std::optional<v1::SimDevice> sim;
  LinkSpeed link_speed;  // link, read
  bool die_with_parent = false, probe = false;
};

// All but --help and --version. `flags` must outlive `app`.
void DefineFlags(CLI::App* app, WorkerFlags* flags);

// What is wrong with a flag, after CLI11's own checks; reads those that need it and fills in the
// defaults that depend on others.
//   INVALID_ARGUMENT  names the flag
absl::Status CheckFlags(WorkerFlags* flags);

}  // namespace headrace
