// A worker for the coordinator's tests: a real StageService on a real port that computes nothing.
// It answers assignments, and reports ready, steps, a weights slice and the end as a worker would.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
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
    bool profile_stalls = false;  // ProfileLayers ends when it is cancelled, or the worker dies
  };

  // Registers at `coordinator` and keeps its lease. Dies with a failed CHECK where that is refused.
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
  grpc::Status StopStage(grpc::ServerContext*, const v1::StopStageRequest* request,
                         v1::StopStageResponse* response) override;

 private:
  void Beat();
  void Work();
  void Report(v1::StageEvent event);
  void Train(const v1::StageAssignment& assignment);
  void Generate(const v1::StageAssignment& assignment);
  void Finish(const v1::StageAssignment& assignment, int64_t step, const std::string& reason);

  const std::string name_;
  const Behaviour behaviour_;
  std::string instance_;
  std::unique_ptr<v1::CoordinatorService::Stub> blobs_;
  std::unique_ptr<v1::WorkerRegistryService::Stub> registry_;
  std::unique_ptr<grpc::Server> server_;
  std::atomic<bool> dead_ = false;
  std::atomic<int> assigned_ = 0;
  std::atomic<int> stopped_ = 0;
  std::atomic<int> profiled_ = 0;
  uint64_t sequence_ = 0;  // of the working thread

  absl::Mutex mu_;
  v1::StageAssignment assignment_ ABSL_GUARDED_BY(mu_);  // no job id: free
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t last_beat_ ABSL_GUARDED_BY(mu_) = 0;
  BoundedQueue<std::function<void()>> work_{100};
  std::thread beater_;
  std::thread worker_;
};

}  // namespace headrace
