#include "coordinator/registry_service.h"

#include <cmath>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/flags.h"
#include "common/grpc_status.h"
#include "common/log.h"
#include "common/status.h"
#include "common/steady_clock.h"
#include "plan/sim_device.h"

namespace headrace {
namespace {

constexpr size_t kMaxNameBytes = 128;
constexpr size_t kMaxTextBytes = 512;

absl::Status CheckName(const std::string& name) {
  bool plain = !name.empty() && name.size() <= kMaxNameBytes;
  for (const char c : name) plain &= c > ' ' && c < 127 && c != ',';
  if (plain) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a worker's name is 1 to ", kMaxNameBytes,
                                                 " printable characters without space or comma"));
}

absl::Status CheckInfo(const v1::WorkerInfo& info) {
  HEADRACE_RETURN_IF_ERROR(CheckName(info.name()));
  HEADRACE_RETURN_IF_ERROR(
      Annotate(CheckAddress(info.address()), absl::StrCat("worker ", info.name(), "'s address")));
  if (info.instance().empty() || info.instance().size() > kMaxNameBytes) {
    return absl::InvalidArgumentError("a worker's instance is 1 to 128 bytes");
  }
  if (info.device().size() > kMaxTextBytes || info.device_name().size() > kMaxTextBytes ||
      info.capability().size() > kMaxTextBytes ||
      info.version().size() > kMaxTextBytes || info.job_id().size() > kMaxTextBytes) {
    return absl::InvalidArgumentError("a worker's device, version or job is too long");
  }
  if (info.memory_limit_bytes() <= 0 || info.threads() < 1 || info.threads() > 4096) {
    return absl::InvalidArgumentError(
        "a worker needs a memory limit above 0 and 1 to 4096 threads");
  }
  if (!std::isfinite(info.flops_per_second()) || info.flops_per_second() < 0) {
    return absl::InvalidArgumentError("flops_per_second: expected 0 or more");
  }
  if (!info.has_sim()) return absl::OkStatus();
  return Annotate(CheckSim(info.sim()), absl::StrCat("worker ", info.name()));
}

void ReadClock(v1::ClockReading* clock) {
  clock->set_clock(SteadyClockName());
  clock->set_now_ns(SteadyNanos());
}

}  // namespace

grpc::Status RegistryServiceImpl::Answer(const char* method, const absl::Status& status) {
  metrics_->CountRpc(method, status);
  return ToGrpc(status);
}

absl::Status RegistryServiceImpl::Register(const v1::WorkerInfo& info) {
  HEADRACE_RETURN_IF_ERROR(CheckInfo(info));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<LostWorker> replaced, registry_->Register(info));
  for (const LostWorker& lost : replaced) {
    HEADRACE_RETURN_IF_ERROR(driver_->Post(WorkerLost{lost.name, lost.instance, lost.reason}, 0));
  }
  LogInfo(absl::StrCat("worker ", info.name(), " joined: ", info.address(), ", ", info.threads(),
                       " threads, ", FormatBytes(info.memory_limit_bytes())));
  return driver_->Post(WorkerJoined{info}, static_cast<int64_t>(info.ByteSizeLong()));
}

grpc::Status RegistryServiceImpl::RegisterWorker(grpc::ServerContext*,
                                                 const v1::RegisterWorkerRequest* request,
                                                 v1::RegisterWorkerResponse* response) {
  response->set_heartbeat_ms(absl::ToInt64Milliseconds(lease_.heartbeat));
  response->set_lease_ms(absl::ToInt64Milliseconds(lease_.lease));
  ReadClock(response->mutable_clock());
  return Answer("RegisterWorker", Register(request->worker()));
}

absl::Status RegistryServiceImpl::Beat(const v1::HeartbeatRequest& request,
                                       v1::HeartbeatResponse* response) {
  if (request.leaving()) {
    HEADRACE_ASSIGN_OR_RETURN(const LostWorker left,
                              registry_->Leave(request.worker(), request.instance()));
    LogInfo(absl::StrCat("worker ", left.name, " left"));
    return driver_->Post(WorkerLost{left.name, left.instance, left.reason}, 0);
  }
  HEADRACE_ASSIGN_OR_RETURN(const Registry::Answer answer,
                            registry_->Heartbeat(request.worker(), request.instance(),
                                                 request.job_id(), request.generation()));
  response->set_stop_stage(answer.stop);
  response->set_next_ms(absl::ToInt64Milliseconds(answer.pause));
  ReadClock(response->mutable_clock());
  return driver_->Post(
      WorkerBeat{request.worker(), request.instance(), request.job_id(), request.number()},
      static_cast<int64_t>(request.ByteSizeLong()));
}

grpc::Status RegistryServiceImpl::Heartbeat(grpc::ServerContext*,
                                            const v1::HeartbeatRequest* request,
                                            v1::HeartbeatResponse* response) {
  return Answer("Heartbeat", Beat(*request, response));
}

absl::Status RegistryServiceImpl::Report(const v1::ReportEventsRequest& request) {
  HEADRACE_RETURN_IF_ERROR(registry_->Check(request.worker(), request.instance()));
  for (const v1::StageEvent& event : request.events()) {
    // What was posted before an error is recognised by its sequence when it comes again.
    HEADRACE_RETURN_IF_ERROR(
        driver_->Post(StageReported{request.worker(), request.instance(), event},
                      static_cast<int64_t>(event.ByteSizeLong())));
  }
  return absl::OkStatus();
}

grpc::Status RegistryServiceImpl::ReportEvents(grpc::ServerContext*,
                                               const v1::ReportEventsRequest* request,
                                               v1::ReportEventsResponse*) {
  return Answer("ReportEvents", Report(*request));
}

}  // namespace headrace
