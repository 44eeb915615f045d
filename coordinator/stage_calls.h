// RPCs to workers: ProfileLayers, AssignStage, StartStage, ControlStage, StopStage. Each has a
// deadline, none blocks its caller, and each ends in exactly one CallEnded.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/job_messages.h"
#include "headrace/v1/worker.grpc.pb.h"

namespace headrace {

// Thread-safe.
class StageCalls {
 public:
  static constexpr absl::Duration kAssignTime = absl::Seconds(3);
  static constexpr absl::Duration kStartTime = absl::Seconds(3);
  static constexpr absl::Duration kControlTime = absl::Seconds(3);
  static constexpr absl::Duration kStopTime = absl::Seconds(1);
  // Beyond Profiling::kBudget, for what a worker misjudged.
  static constexpr absl::Duration kProfileTime = absl::Seconds(15);

  // `ended` is called from gRPC's threads; it must not block.
  explicit StageCalls(std::function<void(CallEnded)> ended) : ended_(std::move(ended)) {}
  // Cancels what is under way and waits for it.
  ~StageCalls();

  // Where a worker is. The calls below to one that is not known end at once, with UNAVAILABLE.
  void Know(const std::string& worker, const std::string& instance, const std::string& address);
  void Profile(const ProfileCall& call);
  // The call ends with CANCELLED, at once; the worker stops at its next pause.
  void CancelProfile(const headrace::CancelProfile& cancel);
  void Assign(const AssignCall& call);
  void Start(const StartCall& call);
  void Control(const ControlCall& call);
  void Stop(const StopCall& call);
  // The worker is gone.
  void Forget(const std::string& worker, const std::string& instance);

 private:
  struct Worker {
    std::string instance;
    std::string address;
    // shared_ptr: a call under way keeps its stub although the worker is forgotten.
    std::shared_ptr<v1::StageService::Stub> stub;  // from its first call on
  };
  std::shared_ptr<v1::StageService::Stub> StubOf(const std::string& worker,
                                                 const std::string& instance);
  // Runs one call: `invoke(stub->async(), context, request, response, callback)`.
  template <typename Request, typename Response, typename Invoke>
  void Call(CallEnded ended, std::shared_ptr<v1::StageService::Stub> stub, Request request,
            absl::Duration time, Invoke invoke);
  struct OpenCall {
    virtual ~OpenCall() = default;
    grpc::ClientContext context;
    CallEnded ended;      // moved from when the call ends
    std::string profile;  // ProfileKey, of a ProfileCall
  };
  void Finish(const std::shared_ptr<OpenCall>& call);

  const std::function<void(CallEnded)> ended_;
  absl::Mutex mu_;
  std::map<std::string, Worker> workers_ ABSL_GUARDED_BY(mu_);
  // shared_ptr: the callback holds it too, and whoever cancels must not see it die.
  std::set<std::shared_ptr<OpenCall>> open_ ABSL_GUARDED_BY(mu_);
};

}  // namespace headrace
