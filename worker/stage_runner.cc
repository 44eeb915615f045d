#include "worker/stage_runner.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/fault_point.h"
#include "common/log.h"
#include "common/status.h"
#include "plan/sim_device.h"
#include "worker/pipeline/generate.h"
#include "worker/stage_fetch.h"
#include "worker/stage_training.h"

namespace headrace {
namespace {

// Stages connect when all of them are ready, so a peer that does not answer in this time is gone.
constexpr absl::Duration kConnectTime = absl::Seconds(3);
// … unless the two try NCCL, whose first connection takes seconds. That a peer is gone its stream
// tells.
constexpr absl::Duration kDeviceConnectTime = absl::Seconds(25);
constexpr absl::Duration kFinishTime = absl::Seconds(5);
// What a device was told before a stage ends may be a whole step.
constexpr absl::Duration kIdleTime = absl::Minutes(1);

std::string LinkLine(const v1::LinkInfo& link) {
  return absl::StrCat("link to stage ", link.to_stage(), ": ", link.transport(), " (",
                      link.reason(), "), stream to ", link.address());
}

}  // namespace

StageRunner::StageRunner(StageJob job, const WorkerContext& context)
    : job_(std::move(job)),
      context_(context),
      reports_(&job_, context_),
      schedule_(job_.checkpoint, job_.training.steps()),
      finished_step_(job_.start_step) {
  thread_ = std::thread([this] { Run(); });
}

StageRunner::~StageRunner() {
  Stop("");
  thread_.join();
}

absl::Status StageRunner::Start() {
  absl::MutexLock lock(&mu_);
  if (stopped_ || done_) return absl::FailedPreconditionError("the stage has ended");
  if (!ready_) return absl::FailedPreconditionError("the stage is not ready yet");
  if (started_) return absl::FailedPreconditionError("the stage was started already");
  started_ = true;
  return absl::OkStatus();
}

void StageRunner::Control(bool checkpoint, bool leave) { schedule_.Ask(checkpoint, leave); }

v1::StageStanding StageRunner::standing() const {
  v1::StageStanding standing;
  standing.set_job_id(job_.job_id);
  standing.set_generation(job_.generation);
  standing.set_stage(job_.stage());
  standing.set_step(finished_step_);
  return standing;
}

absl::Duration StageRunner::coordinator_timeout() const {
  absl::MutexLock lock(&mu_);
  return started_ && !job_.generates ? job_.coordinator_timeout : absl::ZeroDuration();
}

void StageRunner::Stop(const std::string& fault) {
  std::shared_ptr<Outbox> outbox;
  {
    absl::MutexLock lock(&mu_);
    if (!stopped_) stop_fault_ = fault;
    stopped_ = true;
    cancelled_ = true;
    if (inbox_ != nullptr) inbox_->Close();
    outbox = outbox_;
  }
  cancellation_.Cancel();
  if (outbox != nullptr) outbox->Close();
}

bool StageRunner::stopped() const {
  absl::MutexLock lock(&mu_);
  return stopped_;
}

bool StageRunner::AwaitDone(absl::Time deadline) const {
  absl::MutexLock lock(&mu_);
  return mu_.AwaitWithDeadline(absl::Condition(&done_), deadline);
}

void StageRunner::Run() {
  context_.metrics->Serving(true);
  reports_.recorder()->Record(
      absl::StrCat("preparing stage ", job_.stage(), " of job ", job_.job_id));
  absl::StatusOr<std::unique_ptr<StageEquipment>> equipment = Equip();
  std::string lost;  // what the device said last
  if (equipment.ok()) {
    ReportFault(RunStage(equipment->get()));
    TearDown(equipment->get());
    ComputeDevice* const device = (*equipment)->device();
    if (device->lost()) lost = std::string(device->Check().message());
    equipment->reset();
  } else {
    ReportFault(equipment.status());
    if (absl::IsUnavailable(equipment.status())) lost = std::string(equipment.status().message());
  }
  context_.metrics->Serving(false);
  context_.metrics->MemoryInUse({});
  context_.metrics->PinnedBytes(0);
  LogInfo(absl::StrCat("job ", job_.job_id, ", stage ", job_.stage(), ": ended"));
  {
    absl::MutexLock lock(&mu_);
    done_ = true;
  }
  if (!lost.empty() && context_.device_lost) context_.device_lost(lost);
  // Last of all: whoever hears of it may give this worker its next stage at once.
  if (end_.event_case() == v1::StageEvent::EVENT_NOT_SET) return;
  if (const absl::Status status = reports_.Send(std::move(end_)); !status.ok()) {
    LogError(absl::StrCat("cannot report the end of the stage: ", status.message()));
  }
}

absl::StatusOr<std::unique_ptr<StageEquipment>> StageRunner::Equip() {
  // A measurement that nobody waits for any more still has memory until its pass of a layer ends.
  constexpr absl::Duration kLookEvery = absl::Milliseconds(50);
  while (context_.profiler != nullptr && !context_.profiler->Finish(absl::Now() + kLookEvery)) {
    HEADRACE_RETURN_IF_ERROR(CheckNotStopped());
  }
  return StageEquipment::Create(&job_, context_.open_device);
}

absl::Status StageRunner::RunStage(StageEquipment* equipment) {
  {
    absl::MutexLock lock(&mu_);
    inbox_ = equipment->inbox();
    if (stopped_) inbox_->Close();
  }
  HEADRACE_RETURN_IF_ERROR(Prepare(equipment));
  HEADRACE_RETURN_IF_ERROR(AwaitStart());
  HEADRACE_RETURN_IF_ERROR(Connect(equipment));
  return job_.generates ? RunGenerate(equipment) : Train(equipment);
}

absl::Status StageRunner::Prepare(StageEquipment* equipment) {
  const absl::Time start = absl::Now();
  HEADRACE_RETURN_IF_ERROR(CheckNotStopped());
  HEADRACE_RETURN_IF_ERROR(FaultPoint("load"));
  StageFetch fetch(&job_, &context_, reports_.recorder(), &cancellation_);
  const absl::Status fetched = fetch.Weights(equipment);
  bad_slice_ = fetch.bad_slice();
  HEADRACE_RETURN_IF_ERROR(fetched);
  HEADRACE_RETURN_IF_ERROR(CheckNotStopped());
  HEADRACE_RETURN_IF_ERROR(fetch.Data(equipment));
  HEADRACE_RETURN_IF_ERROR(CheckNotStopped());
  context_.metrics->MemoryInUse(equipment->MemoryInUse());
  context_.metrics->PinnedBytes(equipment->device()->pinned_bytes());

  // From here on neighbours may connect: they do so once all stages are ready.
  context_.directory->Enter(Context(equipment), equipment->inbox(), equipment->shared_inputs());
  {
    absl::MutexLock lock(&mu_);
    ready_ = true;
  }
  reports_.recorder()->Record("ready");
  v1::StageEvent event;
  event.mutable_ready();
  HEADRACE_RETURN_IF_ERROR(reports_.Send(std::move(event)));
  LogInfo(absl::StrCat("job ", job_.job_id, ", stage ", job_.stage(), ": ready after ",
                       absl::FormatDuration(absl::Now() - start)));
  return absl::OkStatus();
}

// Without a deadline of its own: other stages may still be fetching their data. The coordinator
// starts or stops the stage, and the heartbeater stops it if the coordinator is gone.
absl::Status StageRunner::AwaitStart() {
  {
    absl::MutexLock lock(&mu_);
    const auto told = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return started_ || stopped_; };
    mu_.Await(absl::Condition(&told));
  }
  return CheckNotStopped();
}

LinkContext StageRunner::Context(StageEquipment* equipment) const {
  return {.job_id = job_.job_id,
          .generation = job_.generation,
          .stage = job_.stage(),
          .credits = static_cast<int>(job_.shape.credits),
          .host = job_.host(),
          .transport = job_.hollow_from(job_.stage()) ? v1::TRANSPORT_GRPC : job_.transport,
          .device = equipment->device()->links(),
          .copy_timeout = job_.wait_timeout};
}

std::vector<v1::Peer> StageRunner::Receivers() const {
  const int stage = job_.stage(), last = job_.num_stages() - 1;
  std::set<int> receivers;
  if (stage < last) receivers.insert(stage + 1);
  if (stage > 0 && !job_.generates) receivers.insert(stage - 1);
  // The tie's gradient and the token go from the last stage to stage 0, the tied weight back.
  const bool ends_talk = job_.generates ? stage == last : job_.shape.model.tied;
  if (ends_talk && stage == last && last > 0) receivers.insert(0);
  if (ends_talk && stage == 0 && last > 0 && !job_.generates) receivers.insert(last);
  std::vector<v1::Peer> peers;
  for (int k : receivers) peers.push_back(job_.peers[k]);
  return peers;
}

absl::Status StageRunner::Connect(StageEquipment* equipment) {
  reports_.recorder()->Record("connecting");
  HEADRACE_RETURN_IF_ERROR(FaultPoint("connect"));
  Inbox* inbox = equipment->inbox();
  // A stage that cannot be written to is lost for reading too.
  const auto on_lost = [inbox](int stage, absl::Status cause) { inbox->Fail(stage, cause); };
  absl::StatusOr<std::shared_ptr<Links>> connected = ConnectLinks(
      Context(equipment), Receivers(),
      absl::Now() + (job_.staged() ? kDeviceConnectTime : kConnectTime), on_lost, &cancellation_);
  if (!connected.ok()) {
    // The error names the link; who is at its other end is to blame, but not for a transport that is
    // forced and cannot be.
    const bool forced = absl::StrContains(connected.status().message(), "pipeline.transport is ");
    for (const v1::Peer& peer : forced ? std::vector<v1::Peer>() : Receivers()) {
      const std::string name = absl::StrCat("stage ", peer.stage(), " ");
      if (absl::StrContains(connected.status().message(), name)) blamed_worker_ = peer.worker();
    }
    return Annotate(connected.status(), "cannot connect");
  }
  const std::shared_ptr<Links> outbox = *std::move(connected);
  {
    absl::MutexLock lock(&mu_);
    outbox_ = outbox;
  }
  exchange_ =
      std::make_unique<Exchange>(&job_, equipment->pools(), inbox, outbox.get(),
                                 reports_.recorder(), reports_.spans(), equipment->device());
  reports_.recorder()->Record("connected");
  v1::StageEvent event;
  event.mutable_connected();
  for (v1::LinkInfo& link : outbox->Describe()) {
    if (job_.hollow_from(job_.stage())) {
      link.set_reason(
          absl::StrCat(DescribeSim(job_.sim[job_.stage()]), "; payloads do not travel"));
    }
    LogInfo(absl::StrCat("job ", job_.job_id, ", stage ", job_.stage(), ": ", LinkLine(link)));
    *event.mutable_connected()->add_links() = link;
  }
  HEADRACE_RETURN_IF_ERROR(reports_.Send(std::move(event)));
  return CheckNotStopped();
}

absl::Status StageRunner::Train(StageEquipment* equipment) {
  const StageTraining::Parts parts = {.job = &job_,
                                      .context = &context_,
                                      .equipment = equipment,
                                      .exchange = exchange_.get(),
                                      .reports = &reports_,
                                      .schedule = &schedule_,
                                      .cancellation = &cancellation_,
                                      .cancelled = &cancelled_,
                                      .finished_step = &finished_step_};
  StageTraining training(parts);
  HEADRACE_RETURN_IF_ERROR(training.RunSteps());
  FinishLinks();
  HEADRACE_ASSIGN_OR_RETURN(end_, training.End());
  reports_.recorder()->Record("finished");
  *end_.mutable_trace() = DrainTrace();
  return absl::OkStatus();
}

absl::Status StageRunner::RunGenerate(StageEquipment* equipment) {
  const StageParts parts = equipment->Parts(exchange_.get(), &cancelled_);
  HEADRACE_RETURN_IF_ERROR(Generate(job_, parts, [this](int32_t token) {
    v1::StageEvent drawn;
    drawn.set_token(token);
    if (const absl::Status status = reports_.Send(std::move(drawn)); !status.ok()) Stop("");
  }));
  FinishLinks();
  HEADRACE_RETURN_IF_ERROR(CheckNotStopped());
  *end_.mutable_finished()->mutable_peak_memory() = equipment->PeakMemory();
  reports_.recorder()->Record("finished");
  *end_.mutable_trace() = DrainTrace();
  return absl::OkStatus();
}

// Everything sent was taken, or the steps would not be over: if a neighbour is gone by now, that is
// its own affair.
void StageRunner::FinishLinks() {
  if (const absl::Status status = outbox()->Finish(absl::Now() + kFinishTime); !status.ok()) {
    LogWarning(
        absl::StrCat("job ", job_.job_id, ": links did not end in order: ", status.message()));
  }
}

std::shared_ptr<Outbox> StageRunner::outbox() const {
  absl::MutexLock lock(&mu_);
  return outbox_;
}

void StageRunner::TearDown(StageEquipment* equipment) {
  std::shared_ptr<Outbox> outbox;
  {
    absl::MutexLock lock(&mu_);
    inbox_ = nullptr;
    outbox = std::move(outbox_);
    outbox_ = nullptr;
  }
  // What holds slots of the arena goes first, then what fills them.
  if (outbox != nullptr) outbox->Close();
  context_.directory->Leave(job_.job_id, job_.generation);
  equipment->inbox()->Close();
  exchange_.reset();
  // Whoever gives its memory back waits for the device, and a link may have given up on one that
  // compute has not asked since. What it says is asked for next.
  static_cast<void>(equipment->device()->Wait(kIdleTime));
}

void StageRunner::ReportFault(const absl::Status& status) {
  if (status.ok()) return;
  v1::StageFailed failed;
  std::string told_to_stop;
  {
    absl::MutexLock lock(&mu_);
    if (stopped_ && stop_fault_.empty()) return;  // the coordinator stopped it
    if (stopped_) told_to_stop = stop_fault_;
  }
  std::string sentence = told_to_stop.empty() ? std::string(status.message()) : told_to_stop;
  if (exchange_ != nullptr) {
    failed.set_step(exchange_->position().step);
    failed.set_micro_batch(std::max(0, exchange_->position().micro_batch));
    const int blamed = exchange_->blamed_stage();
    if (blamed >= 0) blamed_worker_ = job_.peers[blamed].worker();
    if (!told_to_stop.empty()) {
      sentence = std::string(exchange_->Failure(absl::StatusCode::kCancelled, sentence).message());
    }
  }
  // Whoever was told to stop has nobody to blame for it.
  if (told_to_stop.empty()) {
    failed.set_blamed_worker(blamed_worker_);
    failed.set_bad_slice(bad_slice_);
  }
  reports_.Fault(sentence, std::move(failed));
}

void StageRunner::ReportUnended() {
  std::string sentence;
  {
    absl::MutexLock lock(&mu_);
    sentence = stop_fault_;
  }
  if (!sentence.empty()) reports_.Fault(sentence, {});
}

absl::Status StageRunner::CheckNotStopped() const {
  absl::MutexLock lock(&mu_);
  if (stopped_) return absl::CancelledError("the stage was told to stop");
  return absl::OkStatus();
}

}  // namespace headrace
