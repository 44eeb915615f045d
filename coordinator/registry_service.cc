#include "coordinator/registry_service.h"

#include <cmath>
#include <random>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/flags.h"
#include "common/grpc_status.h"
#include "common/log.h"
#include "common/sha256.h"
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
      info.capability().size() > kMaxTextBytes || info.version().size() > kMaxTextBytes ||
      info.job_id().size() > kMaxTextBytes) {
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

absl::Status CheckStanding(const v1::StageStanding& standing) {
  if (!standing.job_id().empty() && standing.job_id().size() <= kMaxTextBytes &&
      standing.generation() > 0 && standing.stage() >= 0 && standing.step() >= 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("a standing stage needs a job, a generation and a step");
}

absl::Status CheckHeld(const v1::RegisterWorkerRequest& request) {
  if (request.held_size() > RegistryServiceImpl::kMaxHeldSlices) {
    return absl::InvalidArgumentError(
        absl::StrCat("a worker holds ", request.held_size(), " slices; at most ",
                     RegistryServiceImpl::kMaxHeldSlices, " are heard of"));
  }
  for (const v1::HeldSlice& held : request.held()) {
    if (held.job_id().size() > kMaxNameBytes || held.step() < 0 || !IsSha256(held.sha256())) {
      return absl::InvalidArgumentError("a held slice needs a job, a step and a SHA-256");
    }
  }
  return absl::OkStatus();
}

std::string RandomName() {
  std::random_device device;
  return absl::StrFormat("%08x%08x%08x%08x", device(), device(), device(), device());
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

RegistryServiceImpl::RegistryServiceImpl(Registry* registry, JobDriver* driver, Metrics* metrics,
                                         Lease lease)
    : registry_(registry),
      driver_(driver),
      metrics_(metrics),
      lease_(lease),
      process_(RandomName()) {}

absl::Status RegistryServiceImpl::Register(const v1::RegisterWorkerRequest& request) {
  const v1::WorkerInfo& info = request.worker();
  HEADRACE_RETURN_IF_ERROR(CheckInfo(info));
  HEADRACE_RETURN_IF_ERROR(CheckHeld(request));
  WorkerJoined joined{info};
  if (request.has_standing()) {
    HEADRACE_RETURN_IF_ERROR(CheckStanding(request.standing()));
    joined.standing = request.standing();
  }
  joined.held.assign(request.held().begin(), request.held().end());
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<LostWorker> replaced,
                            registry_->Register(info, joined.standing));
  for (const LostWorker& lost : replaced) {
    HEADRACE_RETURN_IF_ERROR(driver_->Post(WorkerLost{lost.name, lost.instance, lost.reason}, 0));
  }
  std::string more;
  if (joined.standing) {
    more = absl::StrCat(", serves stage ", joined.standing->stage(), " of ",
                        joined.standing->job_id(), " at step ", joined.standing->step());
  }
  LogInfo(absl::StrCat("worker ", info.name(), " joined: ", info.address(), ", ", info.threads(),
                       " threads, ", FormatBytes(info.memory_limit_bytes()), more));
  return driver_->Post(std::move(joined), static_cast<int64_t>(request.ByteSizeLong()));
}

grpc::Status RegistryServiceImpl::RegisterWorker(grpc::ServerContext*,
                                                 const v1::RegisterWorkerRequest* request,
                                                 v1::RegisterWorkerResponse* response) {
  response->set_heartbeat_ms(absl::ToInt64Milliseconds(lease_.heartbeat));
  response->set_lease_ms(absl::ToInt64Milliseconds(lease_.lease));
  response->set_coordinator(process_);
  ReadClock(response->mutable_clock());
  return Answer("RegisterWorker", Register(*request));
}

absl::Status RegistryServiceImpl::Beat(const v1::HeartbeatRequest& request,
                                       v1::HeartbeatResponse* response) {
  if (request.leaving()) {
    HEADRACE_ASSIGN_OR_RETURN(const LostWorker left,
                              registry_->Leave(request.worker(), request.instance()));
    LogInfo(absl::StrCat("worker ", left.name, " left"));
    return driver_->Post(WorkerLost{left.name, left.instance, left.reason}, 0);
  }
  HEADRACE_ASSIGN_OR_RETURN(
      const Registry::Answer answer,
      registry_->Heartbeat(request.worker(), request.instance(), request.job_id(),
                           request.generation(), request.draining()));
  response->set_stop_stage(answer.stop);
  for (const v1::SliceLimit& limit : answer.drop) *response->add_drop() = limit;
  response->set_next_ms(absl::ToInt64Milliseconds(answer.pause));
  ReadClock(response->mutable_clock());
  return driver_->Post(WorkerBeat{request.worker(), request.instance(), request.job_id(),
                                  request.number(), request.draining()},
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
