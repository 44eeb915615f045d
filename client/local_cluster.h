// A coordinator and some workers on this machine, as child processes: for `run`, which ends them,
// and for `up`, which leaves them to `down`.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/child_process.h"
#include "client/coordinator.h"
#include "client/interrupt.h"
#include "client/state_dir.h"
#include "common/file.h"

namespace headrace {

struct LocalClusterOptions {
  int64_t workers = 2;
  int64_t threads_per_worker = 1;
  int64_t memory_limit_bytes = 0;  // of each worker; 0: an equal share of 80 % of what is free
  std::string device;              // of each worker; empty: what headrace-worker takes
  std::string listen;              // of the coordinator; empty: a Unix socket
  bool die_with_parent = true;
  std::string binary_dir;  // where headrace-coordinator and headrace-worker are
};

// Used by one thread.
class LocalCluster {
 public:
  // Returns once the coordinator serves and every worker has registered. On failure nothing is left
  // running, and the message ends with the log of the program at fault.
  //   FAILED_PRECONDITION  the state dir is in use (says by what, and what to do)
  //   DEADLINE_EXCEEDED    a program did not come up in time
  //   CANCELLED            interrupted
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Start(const StateDir& state,
                                                             const LocalClusterOptions& options,
                                                             Interrupt* interrupt);
  // Stops everything unless Release was called.
  ~LocalCluster();
  LocalCluster(const LocalCluster&) = delete;
  LocalCluster& operator=(const LocalCluster&) = delete;

  Coordinator* coordinator() { return coordinator_.get(); }

  // OK while all children run; else how the first that ended did, with its log's tail.
  absl::Status CheckRunning();

  // SIGTERM, three seconds, SIGKILL; removes sockets and the address file.
  void Stop();

  // Writes down what runs (StateDir::cluster) and leaves it to StopRecorded.
  absl::Status Release();

 private:
  LocalCluster(const StateDir& state, const LocalClusterOptions& options, Interrupt* interrupt)
      : state_(state), options_(options), interrupt_(interrupt) {}
  absl::Status StartAll();
  absl::Status MakeSocketDir();
  absl::Status Record() const;
  absl::Status StartCoordinator();
  absl::Status StartWorkers();
  absl::Status AwaitWorkers();
  absl::Status Launch(const std::string& name, const std::string& program,
                      std::vector<std::string> arguments);
  std::string WorkerListen(const std::string& name) const;

  const StateDir state_;
  const LocalClusterOptions options_;
  Interrupt* const interrupt_;
  std::unique_ptr<FileLock> lock_;
  std::string socket_dir_;
  std::vector<std::unique_ptr<ChildProcess>> children_;  // the coordinator first
  std::unique_ptr<Coordinator> coordinator_;
};

// True if a cluster left by Release is (in part) still running.
bool IsRecordedClusterRunning(const StateDir& state);

// Stops what Release left, and removes its sockets and records. Returns how many processes were
// stopped; 0 if nothing ran.
absl::StatusOr<int> StopRecordedCluster(const StateDir& state);

}  // namespace headrace
