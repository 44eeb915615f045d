// A Headrace cluster of real processes on loopback, for tests that need more than one room: the
// binaries from build/bin, a folder of their own, ports the system chose. Faults come from outside,
// as they do in life: SIGKILL, SIGSTOP, a proxy in front of a worker. All of it is gone when the
// object is, or when the test dies; a test that fails prints the ends of the logs.
//
// Not thread-safe: one test, one thread.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "headrace/v1/cluster.grpc.pb.h"
#include "tests/cluster/child_process.h"
#include "tests/cluster/proxy.h"
#include "tests/temp_dir.h"

namespace headrace {

// How a run of the `headrace` client ended.
struct ClientRun {
  int exit_code = -1;  // −1: it had not ended by its deadline, and was killed
  std::string out, err;
};

// For an environment: each step begins so much later, else a tiny job is over before anything can
// happen to it (common/fault_point.h).
inline constexpr char kSlowSteps[] = "HEADRACE_FAULT=step_start:delay=20ms:1+";

// Between two looks at a condition.
inline constexpr absl::Duration kLook = absl::Milliseconds(10);

struct WorkerOptions {
  std::string name;
  std::string memory_limit = "1GiB";
  bool cuttable = false;  // behind a proxy: Link(name)
  std::vector<std::string> more_flags;
  std::vector<std::string> prefix;  // a program that starts the worker, such as /usr/bin/unshare
  std::vector<std::string> environment = {};  // "KEY=value"
};

class TestCluster {
 public:
  // A coordinator and workers w0, w1, … , all registered.
  static absl::StatusOr<std::unique_ptr<TestCluster>> Start(int num_workers);
  static absl::StatusOr<std::unique_ptr<TestCluster>> Start(
      const std::vector<WorkerOptions>& workers);
  ~TestCluster();
  TestCluster(const TestCluster&) = delete;
  TestCluster& operator=(const TestCluster&) = delete;

  // A folder for the test's files, which relative paths given to the client start from.
  const std::string& dir() const { return dir_.path(); }
  std::string WriteFile(const std::string& name, const std::string& content);
  const std::string& address() const { return address_; }

  // Faults and repairs. `worker` must be one of this cluster.
  void Kill(const std::string& worker);    // SIGKILL
  void Pause(const std::string& worker);   // SIGSTOP
  void Resume(const std::string& worker);  // SIGCONT
  void KillCoordinator();
  absl::Status RestartCoordinator();  // on the same data and address
  // What the coordinator has in its environment from its next start on.
  void SetCoordinatorEnvironment(std::vector<std::string> environment);
  Proxy& Link(const std::string& worker);
  // Starts the process; WaitForWorkers waits for it.
  absl::Status AddWorker(const WorkerOptions& options);
  // After its end: another process of its name, on its data; with the environment it had, or this.
  absl::Status RestartWorker(const std::string& worker);
  absl::Status RestartWorker(const std::string& worker, std::vector<std::string> environment);
  // SIGTERM; the exit code.
  absl::StatusOr<int> Terminate(const std::string& worker);
  // A worker's process, or "coordinator".
  ChildProcess& process(const std::string& name);
  std::string Log(const std::string& name) const;

  // Waits until so many workers are alive and free. DEADLINE_EXCEEDED says what there is.
  absl::Status WaitForFreeWorkers(int num_workers, absl::Duration time = absl::Seconds(20));

  // Runs the client to its end.
  ClientRun Run(const std::vector<std::string>& arguments, absl::Duration time = absl::Seconds(60));
  // Starts it only; its output so far is in Log(label).
  absl::StatusOr<std::unique_ptr<ChildProcess>> StartClient(
      const std::string& label, const std::vector<std::string>& arguments);

  // Submits through the client: the job's id.
  absl::StatusOr<std::string> Submit(const std::string& job_file_text);
  // What `describe -o json` says; null, and a failure of the test, if it says nothing.
  nlohmann::json Describe(const std::string& job);
  // Waits until `done(job)`; then returns the job, as ListJobs tells it (without steps and plan).
  //   DEADLINE_EXCEEDED, FAILED_PRECONDITION (the job ended otherwise)  say where it stood
  template <typename Predicate>
  absl::StatusOr<v1::Job> WaitForJob(const std::string& job, absl::Duration time, Predicate done);
  absl::StatusOr<v1::Job> WaitForStep(const std::string& job, int64_t step,
                                      absl::Duration time = absl::Seconds(30));
  absl::StatusOr<v1::Job> WaitForEnd(const std::string& job,
                                     absl::Duration time = absl::Seconds(60));
  absl::StatusOr<v1::Job> WaitForState(const std::string& job, v1::JobState state,
                                       absl::Duration time = absl::Seconds(30));

  v1::CoordinatorService::Stub& stub() { return *stub_; }

 private:
  TestCluster() = default;
  absl::Status StartCoordinator(const std::string& listen);
  absl::StatusOr<std::unique_ptr<ChildProcess>> StartProcess(const std::string& label,
                                                             std::vector<std::string> arguments,
                                                             std::vector<std::string> environment);
  std::string LogPath(const std::string& name) const;
  absl::StatusOr<v1::Job> FindJob(const std::string& id);
  void PrintLogs() const;

  TempDir dir_;
  std::string address_;
  std::unique_ptr<v1::CoordinatorService::Stub> stub_;
  std::map<std::string, WorkerOptions> options_;
  std::vector<std::string> coordinator_environment_;
  std::map<std::string, std::unique_ptr<Proxy>> links_;
  std::map<std::string, std::unique_ptr<ChildProcess>> processes_;
  int num_client_runs_ = 0;
};

bool IsEnded(const v1::Job& job);
// "RUNNING at step 12: message".
std::string Standing(const v1::Job& job);

template <typename Predicate>
absl::StatusOr<v1::Job> TestCluster::WaitForJob(const std::string& job, absl::Duration time,
                                                Predicate done) {
  const absl::Time deadline = absl::Now() + time;
  while (true) {
    absl::StatusOr<v1::Job> now = FindJob(job);
    if (now.ok() && done(*now)) return now;
    if (now.ok() && IsEnded(*now)) return absl::FailedPreconditionError(Standing(*now));
    if (absl::Now() >= deadline) {
      if (!now.ok()) return now.status();
      return absl::DeadlineExceededError(Standing(*now));
    }
    absl::SleepFor(kLook);
  }
}

}  // namespace headrace
