// The coordinator as commands see it: calls with deadlines, and errors that say where it was looked
// for.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/interrupt.h"
#include "client/patience.h"
#include "client/state_dir.h"
#include "headrace/v1/cluster.grpc.pb.h"
#include "plan/job_state.h"

namespace headrace {

inline constexpr absl::Duration kConnectTime = absl::Seconds(5);
inline constexpr absl::Duration kCallTime = absl::Seconds(30);

// --coordinator, else HEADRACE_COORDINATOR, else the address a `headrace up` left in the state dir.
//   UNAVAILABLE       none of them: says what to try
//   INVALID_ARGUMENT  no address (says where it was given)
absl::StatusOr<std::string> FindCoordinator(const std::string& flag, const StateDir& state);

// What WatchJob tells. Calls come from the thread that called FollowJob, in order.
class JobObserver {
 public:
  virtual ~JobObserver() = default;
  virtual void OnJob(const v1::Job& job) {}
  virtual void OnStep(const v1::StepResult& step) {}
  virtual void OnEvent(const v1::JobEvent& event) {}
  virtual void OnTensorHashes(const v1::TensorHashes& hashes) {}
};

// Thread-safe.
class Coordinator {
 public:
  // Waits up to kConnectTime for a connection.
  //   UNAVAILABLE  names the address and what to try
  static absl::StatusOr<std::unique_ptr<Coordinator>> Connect(const std::string& address);

  // One call, at most kCallTime. The coordinator's own errors keep their code; a lost connection or
  // no answer in time is UNAVAILABLE and names the address.
  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (v1::CoordinatorService::Stub::*method)(
                                    grpc::ClientContext*, const Request&, Response*),
                                const Request& request) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kCallTime));
    Response response;
    const absl::Status status = Explain((stub_.get()->*method)(&context, request, &response));
    if (!status.ok()) return status;
    return response;
  }

  absl::StatusOr<v1::Job> GetJob(const std::string& job);  // without steps
  absl::StatusOr<v1::Job> GetJobAndSteps(const std::string& job);
  absl::StatusOr<v1::Job> GetJobAndSteps(const std::string& job, const WaitOptions& options);
  absl::Status CancelJob(const std::string& job);

  // Returns at once if the store has the blob. `progress` (may be empty) is told bytes done and in
  // all.
  absl::Status Upload(const std::string& path, const std::string& sha256, Interrupt* interrupt,
                      const std::function<void(int64_t, int64_t)>& progress);

  // Watches `job` (id or name) until it has ended and returns it as the stream last told it. A
  // broken stream is taken up again where it broke, for as long as `options` have patience.
  //   UNAVAILABLE, CANCELLED  as Patience::Wait
  //   DEADLINE_EXCEEDED       the deadline came first
  absl::StatusOr<v1::Job> FollowJob(const std::string& job, const WaitOptions& options,
                                    JobObserver* observer);

  // Calls `done` every second, at first more often, until it returns true. While it fails with
  // UNAVAILABLE, patience is had; any other error of it ends the wait.
  //   DEADLINE_EXCEEDED  the deadline came first: "WHAT has not happened in time"
  absl::Status WaitUntil(const std::string& what, const WaitOptions& options,
                         const std::function<absl::StatusOr<bool>()>& done);

  // Streams the tokens of a Generate call to `on_token`.
  absl::Status Generate(const v1::GenerateRequest& request, absl::Time deadline,
                        Interrupt* interrupt, const std::function<void(int64_t)>& on_token);

  const std::string& address() const { return address_; }

 private:
  Coordinator(std::string address, std::unique_ptr<v1::CoordinatorService::Stub> stub)
      : address_(std::move(address)), stub_(std::move(stub)) {}
  absl::Status Explain(const grpc::Status& status) const;

  const std::string address_;
  const std::unique_ptr<v1::CoordinatorService::Stub> stub_;
};

// OK for DONE, else ABORTED with one sentence: which job, what became of it and why.
absl::Status OutcomeOf(const v1::Job& job);

}  // namespace headrace
