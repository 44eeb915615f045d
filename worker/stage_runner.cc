#include "worker/stage_runner.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/blob_transfer.h"
#include "common/file.h"
#include "common/flags.h"
#include "common/log.h"
#include "common/status.h"
#include "common/steady_clock.h"
#include "plan/sim_device.h"
#include "worker/checkpoint/weights_slice.h"
#include "worker/pipeline/generate.h"

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

// A transfer slower than 1 MiB/s, after a minute's grace for retries, is not one to wait for.
absl::Time TransferDeadline(int64_t bytes) {
  return absl::Now() + absl::Minutes(1) + absl::Seconds(bytes >> 20);
}

std::string MemoryLine(const StageJob& job, const v1::MemoryBytes& peak, int64_t pinned) {
  const StageBytes plan = StageMemory(job.shape, job.actions);
  const auto kind = [](const char* name, int64_t measured, int64_t predicted) {
    return absl::StrCat(name, " ", measured, " of ", predicted);
  };
  return absl::StrCat("stage ", job.stage(),
                      " after step 2: bytes at most in use, of those predicted: ",
                      kind("weights", peak.weights(), plan.weights), ", ",
                      kind("gradients", peak.gradients(), plan.gradients), ", ",
                      kind("optimizer", peak.optimizer(), plan.optimizer), ", ",
                      kind("stash", peak.stash(), plan.stash), ", ",
                      kind("workspace", peak.workspace(), plan.workspace), ", ",
                      kind("link", peak.link(), plan.link),
                      pinned > 0 ? absl::StrCat("; pinned host memory ", pinned) : "");
}

std::string LinkLine(const v1::LinkInfo& link) {
  return absl::StrCat("link to stage ", link.to_stage(), ": ", link.transport(), " (",
                      link.reason(), "), stream to ", link.address());
}

}  // namespace

StageRunner::StageRunner(StageJob job, const WorkerContext& context)
    : job_(std::move(job)), context_(context), spans_(job_) {
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

v1::FlightRecord StageRunner::flight_record() const {
  v1::FlightRecord record;
  record.set_worker(job_.worker());
  record.set_stage(job_.stage());
  for (std::string& entry : recorder_.Entries()) record.add_entries(std::move(entry));
  return record;
}

v1::StageTrace StageRunner::DrainTrace() {
  v1::StageTrace trace = spans_.Drain();
  if (context_.clock == nullptr) return trace;
  if (const auto estimate = context_.clock->At(SteadyNanos())) {
    trace.set_clock_offset_ns(estimate->offset_ns);
    trace.set_clock_error_ns(estimate->error_ns);
  }
  return trace;
}

void StageRunner::Run() {
  context_.metrics->Serving(true);
  recorder_.Record(absl::StrCat("preparing stage ", job_.stage(), " of job ", job_.job_id));
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
  if (!end_.has_finished()) return;
  if (const absl::Status status = Report(std::move(end_)); !status.ok()) {
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
  return Work(equipment);
}

absl::Status StageRunner::Prepare(StageEquipment* equipment) {
  const absl::Time start = absl::Now();
  HEADRACE_RETURN_IF_ERROR(CheckNotStopped());
  HEADRACE_RETURN_IF_ERROR(FetchWeights(equipment));
  HEADRACE_RETURN_IF_ERROR(CheckNotStopped());
  HEADRACE_RETURN_IF_ERROR(FetchData(equipment));
  HEADRACE_RETURN_IF_ERROR(CheckNotStopped());
  context_.metrics->MemoryInUse(equipment->MemoryInUse());
  context_.metrics->PinnedBytes(equipment->device()->pinned_bytes());

  // From here on neighbours may connect: they do so once all stages are ready.
  context_.directory->Enter(Context(equipment), equipment->inbox(), equipment->shared_inputs());
  {
    absl::MutexLock lock(&mu_);
    ready_ = true;
  }
  recorder_.Record("ready");
  v1::StageEvent event;
  event.mutable_ready();
  HEADRACE_RETURN_IF_ERROR(Report(std::move(event)));
  LogInfo(absl::StrCat("job ", job_.job_id, ", stage ", job_.stage(), ": ready after ",
                       absl::FormatDuration(absl::Now() - start)));
  return absl::OkStatus();
}

absl::Status StageRunner::FetchWeights(StageEquipment* equipment) {
  if (job_.weights.empty()) {
    recorder_.Record("drawing initial weights");
    equipment->model()->Initialise(job_.training.seed());
    return equipment->device()->Check();
  }
  const int64_t first = job_.shape.layers.front().index, last = job_.shape.layers.back().index;
  const bool borrows = job_.shape.model.tied && job_.last();
  std::vector<std::string> paths;
  for (const v1::WeightsSlice& slice : job_.weights) {
    const bool ours = slice.first_layer() <= last && slice.end_layer() > first;
    const bool tied = borrows && slice.first_layer() == 0;
    if (!ours && !tied) continue;
    HEADRACE_ASSIGN_OR_RETURN(std::string path, Download(slice.sha256(), slice.size_bytes()));
    paths.push_back(std::move(path));
  }
  recorder_.Record("loading weights");
  HEADRACE_RETURN_IF_ERROR(
      LoadWeights(paths, &equipment->model()->parameters(), equipment->device()));
  equipment->model()->RoundWeights();
  return equipment->device()->Check();
}

absl::Status StageRunner::FetchData(StageEquipment* equipment) {
  if (job_.generates || (!job_.first() && !job_.last())) return absl::OkStatus();
  HEADRACE_ASSIGN_OR_RETURN(
      const std::string path,
      Download(job_.dataset.sha256(), job_.dataset.num_tokens() * job_.dataset.token_bytes()));
  return equipment->OpenData(path);
}

absl::StatusOr<std::string> StageRunner::Download(const std::string& sha256, int64_t bytes) {
  const std::string folder = absl::StrCat(context_.data_dir, "/blobs");
  HEADRACE_RETURN_IF_ERROR(MakeDirectories(folder));
  std::string path = absl::StrCat(folder, "/", sha256);
  recorder_.Record(absl::StrCat("fetching blob ", sha256));
  HEADRACE_RETURN_IF_ERROR(
      DownloadBlob(context_.coordinator, sha256, path, TransferDeadline(bytes), &cancellation_));
  return path;
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
  recorder_.Record("connecting");
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
  exchange_ = std::make_unique<Exchange>(&job_, equipment->pools(), inbox, outbox.get(), &recorder_,
                                         &spans_, equipment->device());
  recorder_.Record("connected");
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
  HEADRACE_RETURN_IF_ERROR(Report(std::move(event)));
  return CheckNotStopped();
}

absl::Status StageRunner::Work(StageEquipment* equipment) {
  StageParts parts;
  parts.model = equipment->model();
  parts.optimizer = equipment->optimizer();
  parts.device = equipment->device();
  parts.ops = equipment->device()->ops();
  parts.tokens = equipment->tokens();
  parts.losses = equipment->losses();
  parts.evaluation_loss = equipment->evaluation_loss();
  parts.squares = equipment->squares();
  parts.stash = equipment->stash();
  parts.codec = equipment->codec();
  parts.exchange = exchange_.get();
  parts.sampler = equipment->sampler();
  parts.cancelled = &cancelled_;

  v1::StageFinished finished;
  if (job_.generates) {
    HEADRACE_RETURN_IF_ERROR(Generate(job_, parts, [this](int32_t token) {
      v1::StageEvent drawn;
      drawn.set_token(token);
      if (const absl::Status status = Report(std::move(drawn)); !status.ok()) Stop("");
    }));
  } else {
    Executor executor(&job_, parts);
    HEADRACE_RETURN_IF_ERROR(Train(equipment, &executor, &finished));
  }
  std::shared_ptr<Outbox> outbox;
  {
    absl::MutexLock lock(&mu_);
    outbox = outbox_;
  }
  // Everything sent was taken, or the steps would not be over: if a neighbour is gone by now, that
  // is its own affair.
  if (const absl::Status status = outbox->Finish(absl::Now() + kFinishTime); !status.ok()) {
    LogWarning(
        absl::StrCat("job ", job_.job_id, ": links did not end in order: ", status.message()));
  }
  if (job_.simulated()) {
    ReportLog(absl::StrCat("stage ", job_.stage(), " was simulated: no weights are kept"));
  } else if (!job_.generates) {
    HEADRACE_RETURN_IF_ERROR(Save(equipment, &finished));
  }
  HEADRACE_RETURN_IF_ERROR(CheckNotStopped());
  *finished.mutable_peak_memory() = equipment->PeakMemory();
  recorder_.Record("finished");
  *end_.mutable_finished() = std::move(finished);
  *end_.mutable_trace() = DrainTrace();
  return absl::OkStatus();
}

absl::Status StageRunner::Train(StageEquipment* equipment, Executor* executor,
                                v1::StageFinished* finished) {
  int64_t sent = 0, received = 0;
  for (int64_t step = 1; step <= job_.training.steps(); ++step) {
    HEADRACE_ASSIGN_OR_RETURN(StepOutcome outcome, executor->RunStep(step));
    context_.metrics->StepDone(outcome.report.seconds());
    context_.metrics->MemoryInUse(equipment->MemoryInUse());
    context_.metrics->LinkBytes(
        exchange_->sent_bytes() - std::exchange(sent, exchange_->sent_bytes()),
        exchange_->received_bytes() - std::exchange(received, exchange_->received_bytes()));
    if (!outcome.stop_reason.empty()) {
      finished->set_stop_reason(outcome.stop_reason);
      return absl::OkStatus();
    }
    finished->set_weights_step(step);
    v1::StageEvent event;
    *event.mutable_step() = std::move(outcome.report);
    *event.mutable_trace() = DrainTrace();
    HEADRACE_RETURN_IF_ERROR(Report(std::move(event)));
    if (step == 2) {
      ReportLog(MemoryLine(job_, equipment->PeakMemory(), equipment->device()->pinned_bytes()));
    }
  }
  return absl::OkStatus();
}

absl::Status StageRunner::Save(StageEquipment* equipment, v1::StageFinished* finished) {
  recorder_.Record("saving weights");
  const std::string folder = absl::StrCat(context_.data_dir, "/slices");
  HEADRACE_RETURN_IF_ERROR(MakeDirectories(folder));
  const std::string path = absl::StrCat(folder, "/", job_.job_id, "-", job_.generation, "-stage-",
                                        job_.stage(), ".safetensors");
  const absl::Cleanup remove = [&path] { std::remove(path.c_str()); };
  HEADRACE_ASSIGN_OR_RETURN(
      *finished->mutable_weights(),
      WriteWeightsSlice(path, equipment->model()->parameters(), equipment->device()));
  finished->mutable_weights()->set_first_layer(job_.shape.layers.front().index);
  finished->mutable_weights()->set_end_layer(job_.shape.layers.back().index + 1);
  HEADRACE_RETURN_IF_ERROR(CheckNotStopped());
  return UploadBlob(context_.coordinator, path, finished->weights().sha256(),
                    TransferDeadline(finished->weights().size_bytes()), &cancellation_);
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
  if (told_to_stop.empty()) failed.set_blamed_worker(blamed_worker_);
  SendFault(sentence, std::move(failed));
}

void StageRunner::ReportUnended() {
  std::string sentence;
  {
    absl::MutexLock lock(&mu_);
    sentence = stop_fault_;
  }
  if (!sentence.empty()) SendFault(sentence, {});
}

void StageRunner::SendFault(const std::string& what, v1::StageFailed failed) {
  {
    absl::MutexLock lock(&mu_);
    if (std::exchange(fault_told_, true)) return;
  }
  const std::string who = absl::StrCat("worker ", job_.worker(), ", stage ", job_.stage());
  const std::string sentence = absl::StartsWith(what, who) ? what : absl::StrCat(who, ": ", what);
  LogError(absl::StrCat("job ", job_.job_id, ": ", sentence));
  recorder_.Record(sentence);
  failed.set_reason(sentence);
  *failed.mutable_flight_record() = flight_record();
  v1::StageEvent event;
  *event.mutable_failed() = std::move(failed);
  *event.mutable_trace() = DrainTrace();
  if (const absl::Status told = Report(std::move(event)); !told.ok()) {
    LogError(absl::StrCat("cannot report the fault: ", told.message()));
  }
}

absl::Status StageRunner::Report(v1::StageEvent event) {
  event.set_job_id(job_.job_id);
  event.set_generation(job_.generation);
  event.set_stage(job_.stage());
  return context_.reporter->Report(std::move(event));
}

void StageRunner::ReportLog(const std::string& line) {
  v1::StageEvent event;
  event.set_log(line);
  if (const absl::Status status = Report(std::move(event)); !status.ok()) {
    LogWarning(absl::StrCat("cannot report: ", status.message()));
  }
}

absl::Status StageRunner::CheckNotStopped() const {
  absl::MutexLock lock(&mu_);
  if (stopped_) return absl::CancelledError("the stage was told to stop");
  return absl::OkStatus();
}

}  // namespace headrace
