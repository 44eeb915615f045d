// A worker for the coordinator's tests: a real StageService on a real port that computes nothing.
// It answers assignments, and reports ready, steps, a weights slice and the end as a worker would.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/bounded_queue.h"
#include "headrace/v1/cluster.grpc.pb.h"
#include "headrace/v1/worker.grpc.pb.h"

namespace headrace {

class FakeWorker final : public v1::StageService::Service {
 public:
  struct Behaviour {
    int64_t hold_after_step = -1;   // goes no further than this until it is stopped
    int64_t hold_after_token = -1;  // the same for a generate request, counted from 0
    int64_t nan_at_step = -1;       // ends there by the global decision
    int64_t fail_at_step = -1;      // fails there, with the text and the blame below
    std::string failure{};
    std::string blamed{};
    std::string delayed_confession{};  // said after it was stopped
    std::string measures_on{};         // this device; empty: it does not measure layers
    std::string profile_failure{};     // what ProfileLayers fails with
    bool profile_stalls = false;    // ProfileLayers ends when it is cancelled, or the worker dies
    absl::Duration step_time{};     // until it is stopped
    int64_t checkpoint_every = -1;  // steps
    std::string folder{};  // its slices go there, and their URIs are reported; empty: to the store
  };

  // Registers at `coordinator` and keeps its lease; where that does not know it (any more), it
  // registers again, with the stage it has. Dies with a failed CHECK where that is refused.
  FakeWorker(const std::string& coordinator, const std::string& name, Behaviour behaviour);
  FakeWorker(const std::string& coordinator, const std::string& name)
      : FakeWorker(coordinator, name, Behaviour()) {}
  ~FakeWorker() override;

  // No more heartbeats, and nobody answers.
  void Die();
  // The calls it has seen.
  int assigned() const { return assigned_; }
  int stopped() const { return stopped_; }
  int profiled() const { return profiled_; }
  int controlled() const { return controlled_; }
  // The last assignment it was given.
  v1::StageAssignment assignment();
  // Last step whose report has been answered with OK.
  int64_t reported_step() const { return reported_step_; }
  // What its last heartbeat's answer told it to drop.
  std::vector<v1::SliceLimit> dropped();
  bool AwaitProfiled(absl::Time deadline);
  // False: it was not stopped so often by then.
  bool AwaitStopped(int times, absl::Time deadline);

  // A block takes 1 + 2 ms, any other layer 5 + 10.
  grpc::Status ProfileLayers(grpc::ServerContext* context, const v1::ProfileLayersRequest* request,
                             v1::ProfileLayersResponse* response) override;
  grpc::Status AssignStage(grpc::ServerContext*, const v1::AssignStageRequest* request,
                           v1::AssignStageResponse*) override;
  grpc::Status StartStage(grpc::ServerContext*, const v1::StartStageRequest*,
                          v1::StartStageResponse*) override;
  // What it is asked for comes after its next step.
  grpc::Status ControlStage(grpc::ServerContext*, const v1::ControlStageRequest* request,
                            v1::ControlStageResponse*) override;
  grpc::Status StopStage(grpc::ServerContext*, const v1::StopStageRequest* request,
                         v1::StopStageResponse* response) override;

 private:
  absl::Status Register();
  void Beat();
  void Work();
  absl::Status Report(v1::StageEvent event);
  // Of this stage, without what has happened.
  static v1::StageEvent EventOf(const v1::StageAssignment& assignment);
  // False: the stage was stopped meanwhile.
  bool PassStepTime(const v1::StageAssignment& assignment);
  void Train(const v1::StageAssignment& assignment);
  // True: it is to leave.
  bool Control(const v1::StageAssignment& assignment, int64_t step);
  void Snapshot(const v1::StageAssignment& assignment, int64_t step);
  // A slice of one weight, whose bytes differ by stage and `step`, in `folder` or (empty) the
  // store.
  v1::WeightsSlice MakeSlice(const v1::StageAssignment& assignment, int64_t step,
                             const std::string& folder);
  void Generate(const v1::StageAssignment& assignment);
  void Finish(const v1::StageAssignment& assignment, int64_t step, const std::string& reason);

  const std::string name_;
  const Behaviour behaviour_;
  std::string instance_;
  v1::RegisterWorkerRequest registration_;
  std::unique_ptr<v1::CoordinatorService::Stub> blobs_;
  std::unique_ptr<v1::WorkerRegistryService::Stub> registry_;
  std::unique_ptr<grpc::Server> server_;
  std::atomic<bool> dead_ = false;
  std::atomic<int> assigned_ = 0;
  std::atomic<int> stopped_ = 0;
  std::atomic<int> profiled_ = 0;
  std::atomic<int> controlled_ = 0;
  std::atomic<int64_t> reported_step_ = 0;
  uint64_t sequence_ = 0;  // of the working thread

  absl::Mutex mu_;
  v1::StageAssignment assignment_ ABSL_GUARDED_BY(mu_);  // no job id: free
  v1::StageAssignment last_assignment_ ABSL_GUARDED_BY(mu_);
  v1::ControlStageRequest control_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::SliceLimit> dropped_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t last_beat_ ABSL_GUARDED_BY(mu_) = 0;
  BoundedQueue<std::function<void()>> work_{100};
  std::thread beater_;
  std::thread worker_;
};

}  // namespace headrace
