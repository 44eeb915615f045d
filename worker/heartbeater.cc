#include "worker/heartbeater.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/grpc_status.h"
#include "common/log.h"
#include "common/steady_clock.h"

namespace headrace {
namespace {

constexpr absl::Duration kRegisterTime = absl::Seconds(2);
constexpr absl::Duration kRegisterEvery = absl::Milliseconds(250);
// What a coordinator may dictate.
constexpr int64_t kMinHeartbeatMs = 10, kMaxHeartbeatMs = 60'000, kMaxLeaseMs = 600'000;

}  // namespace

absl::Status SayGoodbye(v1::WorkerRegistryService::StubInterface* stub, const v1::WorkerInfo& self,
                        absl::Time deadline) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(deadline));
  v1::HeartbeatRequest request;
  request.set_worker(self.name());
  request.set_instance(self.instance());
  request.set_leaving(true);
  v1::HeartbeatResponse response;
  return FromGrpc(stub->Heartbeat(&context, request, &response));
}

Heartbeater::Heartbeater(v1::WorkerRegistryService::StubInterface* stub, v1::WorkerInfo self,
                         HeartbeaterCallbacks callbacks)
    : stub_(stub), self_(std::move(self)), callbacks_(std::move(callbacks)) {
  thread_ = std::thread([this] { Run(); });
}

Heartbeater::~Heartbeater() {
  cancellation_.Cancel();
  thread_.join();
}

void Heartbeater::Run() {
  do {
    if (!Register()) return;
  } while (Beat());
}

bool Heartbeater::Register() {
  std::optional<absl::Time> taken_since;
  std::string last_complaint;
  while (true) {
    const absl::Status status = RegisterOnce();
    if (status.ok()) {
      LogInfo(absl::StrCat("registered as ", self_.name(), " at ", self_.address()));
      return true;
    }
    if (absl::IsAlreadyExists(status)) {
      if (!taken_since) taken_since = absl::Now();
    } else {
      taken_since.reset();
    }
    if (absl::IsInvalidArgument(status) ||
        (taken_since && absl::Now() - *taken_since > kNameTakenFor)) {
      callbacks_.refused(status);
      return false;
    }
    const std::string complaint = absl::StrCat("cannot register: ", std::string(status.message()));
    if (complaint != last_complaint) LogWarning(complaint);
    last_complaint = complaint;
    TellAway(lease_, status);
    if (!cancellation_.Pause(kRegisterEvery)) return false;
  }
}

absl::Status Heartbeater::RegisterOnce() {
  v1::RegisterWorkerRequest request;
  *request.mutable_worker() = self_;
  if (callbacks_.registering && !callbacks_.registering(&request)) {
    return absl::UnavailableError("a report is still on its way");
  }
  v1::RegisterWorkerResponse response;
  const int64_t asked_ns = SteadyNanos();
  const absl::Status status = Call(kRegisterTime, [&](grpc::ClientContext* context) {
    return stub_->RegisterWorker(context, request, &response);
  });
  if (!status.ok()) return status;
  if (callbacks_.registered) callbacks_.registered(response.coordinator());
  TellClock(response.clock(), asked_ns);
  heartbeat_ =
      absl::Milliseconds(std::clamp(response.heartbeat_ms(), kMinHeartbeatMs, kMaxHeartbeatMs));
  lease_ = std::max(2 * heartbeat_, absl::Milliseconds(std::min(response.lease_ms(), kMaxLeaseMs)));
  pause_ = heartbeat_;
  answered_ = absl::Now();
  away_logged_ = false;
  return status;
}

bool Heartbeater::Beat() {
  absl::Duration pause = pause_;
  while (cancellation_.Pause(pause)) {
    const absl::Status status = BeatOnce();
    pause = status.ok() ? pause_ : heartbeat_;
    if (status.ok()) {
      answered_ = absl::Now();
      away_logged_ = false;
      continue;
    }
    if (absl::IsNotFound(status)) {
      LogWarning("the coordinator does not know this worker; registering again");
      return true;
    }
    TellAway(lease_ + (pause_ - heartbeat_), status);
  }
  return false;
}

void Heartbeater::TellAway(absl::Duration lease, const absl::Status& status) {
  const absl::Duration silence = absl::Now() - answered_;
  if (silence <= lease) return;
  if (!std::exchange(away_logged_, true)) {
    LogWarning(absl::StrCat("no answer of the coordinator for ", absl::FormatDuration(silence),
                            ": ", std::string(status.message())));
  }
  callbacks_.away(silence);
}

absl::Status Heartbeater::BeatOnce() {
  v1::HeartbeatRequest request;
  request.set_worker(self_.name());
  request.set_instance(self_.instance());
  callbacks_.current(&request);
  v1::HeartbeatResponse response;
  const int64_t asked_ns = SteadyNanos();
  // A beat that gets no answer must leave time for another within the lease.
  const absl::Status status = Call(lease_ / 2, [&](grpc::ClientContext* context) {
    return stub_->Heartbeat(context, request, &response);
  });
  if (!status.ok()) return status;
  TellClock(response.clock(), asked_ns);
  const absl::Duration told = absl::Milliseconds(std::min(response.next_ms(), kMaxHeartbeatMs));
  pause_ = std::max(heartbeat_, told);
  for (const v1::SliceLimit& limit : response.drop()) {
    if (callbacks_.drop) callbacks_.drop(limit);
  }
  if (response.stop_stage() && !request.job_id().empty()) {
    callbacks_.stop_stage(request.job_id(), request.generation());
  }
  return status;
}

void Heartbeater::TellClock(const v1::ClockReading& reading, int64_t asked_ns) {
  if (callbacks_.clock) callbacks_.clock(reading, asked_ns, SteadyNanos());
}

absl::Status Heartbeater::Call(absl::Duration timeout,
                               const std::function<grpc::Status(grpc::ClientContext*)>& call) {
  grpc::ClientContext context;
  const Cancellation::Call in_flight(&cancellation_, &context);
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  return FromGrpc(call(&context));
}

}  // namespace headrace
