// A coordinator and some workers on this machine, as child processes: for `run`, which ends them,
// and for `up`, which leaves them to `down`.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
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
  absl::Duration restart_pause = absl::Seconds(1);  // before what ended is started again (Keep)
  std::string binary_dir;  // where headrace-coordinator and headrace-worker are
};

// Used by one thread, but for coordinator().
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

  // OK while all children run; else how the first that ended did, with its log's tail. Not after
  // Keep.
  absl::Status CheckRunning();

  // From now on a program that ends by itself is started again after restart_pause, by a thread of
  // the cluster's. One that ends too often is given up, and `gave_up` called once, from that
  // thread, with how it ended. Not before Release.
  void Keep(std::function<void(const absl::Status&)> gave_up);

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
  // What is needed to start a program again.
  struct Member {
    std::string name, program;
    std::vector<std::string> arguments;
    std::unique_ptr<ChildProcess> process;
    absl::Time ended = absl::InfiniteFuture();  // when it was first seen to be gone
    std::vector<absl::Time> starts;             // again, lately
  };
  absl::Status Launch(const std::string& name, const std::string& program,
                      std::vector<std::string> arguments);
  absl::Status StartAgain(Member* member, absl::Time now);
  void StopChildren();
  std::string WorkerListen(const std::string& name) const;

  const StateDir state_;
  const LocalClusterOptions options_;
  Interrupt* const interrupt_;
  std::unique_ptr<FileLock> lock_;
  std::string socket_dir_;
  std::vector<Member> members_;  // the coordinator first
  // The thread of Keep; from its start to its end members_ is its own.
  std::thread keeper_;
  absl::Notification stopping_;
  std::unique_ptr<Coordinator> coordinator_;
};

// True if a cluster left by Release is (in part) still running.
bool IsRecordedClusterRunning(const StateDir& state);

// Stops what Release left, and removes its sockets and records. Returns how many processes were
// stopped; 0 if nothing ran.
absl::StatusOr<int> StopRecordedCluster(const StateDir& state);

}  // namespace headrace
