#include "coordinator/stage_calls.h"

#include <type_traits>
#include <utility>

#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/channel.h"
#include "common/grpc_status.h"

namespace headrace {
namespace {

template <typename C>
CallEnded Describe(CallKind kind, const C& call) {
  CallEnded ended;
  ended.kind = kind;
  ended.worker = call.worker;
  ended.instance = call.instance;
  ended.job_id = call.job_id;
  ended.generation = call.generation;
  return ended;
}

std::string ProfileKey(const std::string& worker, const std::string& instance,
                       const std::string& job_id) {
  return absl::StrJoin({worker, instance, job_id}, "/");
}

}  // namespace

StageCalls::~StageCalls() {
  std::set<std::shared_ptr<OpenCall>> open;
  {
    absl::MutexLock lock(&mu_);
    open = open_;
  }
  for (const auto& call : open) call->context.TryCancel();
  absl::MutexLock lock(&mu_);
  const auto none = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return open_.empty(); };
  mu_.Await(absl::Condition(&none));
}

template <typename Request, typename Response, typename Invoke>
void StageCalls::Call(CallEnded ended, std::shared_ptr<v1::StageService::Stub> stub,
                      Request request, absl::Duration time, Invoke invoke) {
  if (stub == nullptr) {
    ended.status = absl::UnavailableError("the worker is gone");
    ended_(std::move(ended));
    return;
  }
  struct State : OpenCall {
    std::shared_ptr<v1::StageService::Stub> stub;
    Request request;
    Response response;
  };
  auto state = std::make_shared<State>();
  if (ended.kind == CallKind::kProfile) {
    state->profile = ProfileKey(ended.worker, ended.instance, ended.job_id);
  }
  state->stub = std::move(stub);
  state->request = std::move(request);
  state->ended = std::move(ended);
  state->context.set_deadline(absl::ToChronoTime(absl::Now() + time));
  {
    absl::MutexLock lock(&mu_);
    open_.insert(state);
  }
  invoke(state->stub->async(), &state->context, &state->request, &state->response,
         [this, state](const grpc::Status& status) {
           state->ended.status = FromGrpc(status);
           if constexpr (std::is_same_v<Response, v1::StopStageResponse>) {
             state->ended.stop = std::move(state->response);
           }
           if constexpr (std::is_same_v<Response, v1::ProfileLayersResponse>) {
             state->ended.profile = std::move(state->response);
           }
           Finish(state);
         });
}

void StageCalls::Finish(const std::shared_ptr<OpenCall>& call) {
  ended_(std::move(call->ended));
  absl::MutexLock lock(&mu_);
  open_.erase(call);
}

void StageCalls::Know(const std::string& worker, const std::string& instance,
                      const std::string& address) {
  absl::MutexLock lock(&mu_);
  Worker& known = workers_[worker];
  if (known.instance != instance || known.address != address) {
    known = Worker{instance, address, nullptr};
  }
}

void StageCalls::Profile(const ProfileCall& call) {
  CallEnded ended;
  ended.kind = CallKind::kProfile;
  ended.worker = call.worker;
  ended.instance = call.instance;
  ended.job_id = call.request.job_id();
  const auto channel = MakeChannel(call.address, ChannelUse::kControl);
  Call<v1::ProfileLayersRequest, v1::ProfileLayersResponse>(
      std::move(ended), v1::StageService::NewStub(channel), call.request, kProfileTime,
      [](auto* async, auto... arguments) { async->ProfileLayers(arguments...); });
}

void StageCalls::CancelProfile(const headrace::CancelProfile& cancel) {
  std::shared_ptr<OpenCall> found;
  {
    absl::MutexLock lock(&mu_);
    const std::string key = ProfileKey(cancel.worker, cancel.instance, cancel.job_id);
    for (const std::shared_ptr<OpenCall>& call : open_) {
      if (call->profile == key) found = call;
    }
  }
  if (found != nullptr) found->context.TryCancel();
}

void StageCalls::Assign(const AssignCall& call) {
  const v1::StageAssignment& assignment = call.assignment;
  CallEnded ended;
  ended.kind = CallKind::kAssign;
  ended.worker = call.worker;
  ended.instance = call.instance;
  ended.job_id = assignment.job_id();
  ended.generation = assignment.generation();
  v1::AssignStageRequest request;
  *request.mutable_assignment() = assignment;
  Call<v1::AssignStageRequest, v1::AssignStageResponse>(
      std::move(ended), StubOf(call.worker, call.instance), std::move(request), kAssignTime,
      [](auto* async, auto... arguments) { async->AssignStage(arguments...); });
}

void StageCalls::Start(const StartCall& call) {
  v1::StartStageRequest request;
  request.set_job_id(call.job_id);
  request.set_generation(call.generation);
  Call<v1::StartStageRequest, v1::StartStageResponse>(
      Describe(CallKind::kStart, call), StubOf(call.worker, call.instance), std::move(request),
      kStartTime, [](auto* async, auto... arguments) { async->StartStage(arguments...); });
}

void StageCalls::Control(const ControlCall& call) {
  v1::ControlStageRequest request;
  request.set_job_id(call.job_id);
  request.set_generation(call.generation);
  request.set_checkpoint(call.checkpoint);
  request.set_leave(call.leave);
  Call<v1::ControlStageRequest, v1::ControlStageResponse>(
      Describe(CallKind::kControl, call), StubOf(call.worker, call.instance), std::move(request),
      kControlTime, [](auto* async, auto... arguments) { async->ControlStage(arguments...); });
}

void StageCalls::Stop(const StopCall& call) {
  v1::StopStageRequest request;
  request.set_job_id(call.job_id);
  request.set_generation(call.generation);
  request.set_reason(call.reason);
  Call<v1::StopStageRequest, v1::StopStageResponse>(
      Describe(CallKind::kStop, call), StubOf(call.worker, call.instance), std::move(request),
      kStopTime, [](auto* async, auto... arguments) { async->StopStage(arguments...); });
}

void StageCalls::Forget(const std::string& worker, const std::string& instance) {
  absl::MutexLock lock(&mu_);
  const auto it = workers_.find(worker);
  if (it != workers_.end() && it->second.instance == instance) workers_.erase(it);
}

std::shared_ptr<v1::StageService::Stub> StageCalls::StubOf(const std::string& worker,
                                                           const std::string& instance) {
  absl::MutexLock lock(&mu_);
  const auto it = workers_.find(worker);
  if (it == workers_.end() || it->second.instance != instance) return nullptr;
  if (it->second.stub == nullptr) {
    const auto channel = MakeChannel(it->second.address, ChannelUse::kControl);
    it->second.stub = v1::StageService::NewStub(channel);
  }
  return it->second.stub;
}

}  // namespace headrace
