#include "worker/reporter.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/grpc_status.h"
#include "common/log.h"

namespace headrace {
namespace {

// One message stays below gRPC's default limit of 4 MiB, unless one event alone is larger.
constexpr int64_t kBatchBytes = 1 << 20;
constexpr absl::Duration kCallTime = absl::Seconds(2);
constexpr absl::Duration kLandingTime = absl::Milliseconds(200);
constexpr absl::Duration kFirstPause = absl::Milliseconds(50);
constexpr absl::Duration kLongestPause = absl::Milliseconds(500);

}  // namespace

Reporter::Reporter(v1::WorkerRegistryService::StubInterface* stub, std::string worker,
                   std::string instance)
    : stub_(stub), worker_(std::move(worker)), instance_(std::move(instance)) {
  thread_ = std::thread([this] { Run(); });
}

Reporter::~Reporter() {
  {
    absl::MutexLock lock(&mu_);
    closed_ = true;
  }
  cancellation_.Cancel();
  thread_.join();
}

absl::Status Reporter::Report(v1::StageEvent event) {
  event.set_unix_seconds(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
  absl::MutexLock lock(&mu_);
  // The coordinator keeps the latest spans only.
  if (queued_bytes_ > kCapacityBytes / 2) event.clear_trace();
  const int64_t bytes = static_cast<int64_t>(event.ByteSizeLong());
  if (queued_bytes_ + bytes > kCapacityBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(queued_bytes_, " bytes of events wait for the coordinator already"));
  }
  event.set_sequence(++last_sequence_);
  queued_bytes_ += bytes;
  queue_.push_back({std::move(event), bytes});
  return absl::OkStatus();
}

bool Reporter::Hold() {
  absl::MutexLock lock(&mu_);
  held_ = true;
  const auto landed = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !in_flight_; };
  return held_ = mu_.AwaitWithTimeout(absl::Condition(&landed), kLandingTime);
}

void Reporter::Resume(const std::string& coordinator) {
  absl::MutexLock lock(&mu_);
  held_ = false;
  if (!coordinator_.empty() && coordinator != coordinator_) {
    queue_.insert(queue_.begin(), std::make_move_iterator(lately_.begin()),
                  std::make_move_iterator(lately_.end()));
    queued_bytes_ += lately_bytes_;
    lately_.clear();
    lately_bytes_ = 0;
  }
  coordinator_ = coordinator;
}

absl::Status Reporter::Flush(absl::Time deadline) {
  absl::MutexLock lock(&mu_);
  const auto empty = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return queue_.empty(); };
  if (mu_.AwaitWithDeadline(absl::Condition(&empty), deadline)) return absl::OkStatus();
  return absl::DeadlineExceededError("events still wait for the coordinator");
}

void Reporter::Run() {
  absl::Duration pause = kFirstPause;
  while (true) {
    const v1::ReportEventsRequest batch = NextBatch();
    if (batch.events().empty()) return;
    const bool delivered = Deliver(batch);
    Landed(delivered ? batch.events_size() : 0);
    if (delivered) {
      pause = kFirstPause;
      continue;
    }
    if (!cancellation_.Pause(pause)) return;
    pause = std::min(2 * pause, kLongestPause);
  }
}

v1::ReportEventsRequest Reporter::NextBatch() {
  v1::ReportEventsRequest request;
  request.set_worker(worker_);
  request.set_instance(instance_);
  absl::MutexLock lock(&mu_);
  const auto ready = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return closed_ || (!held_ && !queue_.empty());
  };
  mu_.Await(absl::Condition(&ready));
  if (closed_) return request;
  int64_t bytes = 0;
  for (const Queued& queued : queue_) {
    bytes += queued.bytes;
    if (bytes > kBatchBytes && request.events_size() > 0) break;
    *request.add_events() = queued.event;
  }
  in_flight_ = true;
  return request;
}

bool Reporter::Deliver(const v1::ReportEventsRequest& request) {
  grpc::ClientContext context;
  const Cancellation::Call call(&cancellation_, &context);
  context.set_deadline(absl::ToChronoTime(absl::Now() + kCallTime));
  v1::ReportEventsResponse response;
  const absl::Status status = FromGrpc(stub_->ReportEvents(&context, request, &response));
  // A coordinator that cannot make sense of an event never will; kept, it would hold back the rest.
  if (absl::IsInvalidArgument(status)) {
    LogError(absl::StrCat("the coordinator refused events: ", status.message()));
  }
  return status.ok() || absl::IsInvalidArgument(status);
}

void Reporter::Landed(int delivered) {
  absl::MutexLock lock(&mu_);
  in_flight_ = false;
  for (int i = 0; i < delivered; ++i) {
    Queued& told = queue_.front();
    queued_bytes_ -= told.bytes;
    // A line of the log that is there already would be there twice.
    if (!told.event.has_log()) {
      // Many are kept for long: what they take, which is several times what they are when sent.
      told.bytes = static_cast<int64_t>(told.event.SpaceUsedLong());
      lately_bytes_ += told.bytes;
      lately_.push_back(std::move(told));
    }
    queue_.pop_front();
  }
  while (lately_bytes_ > kLatelyBytes) {
    lately_bytes_ -= lately_.front().bytes;
    lately_.pop_front();
  }
}

}  // namespace headrace
