// Whatever workers say, in whatever order: registrations, heartbeats and reports into the job
// machine, with calls, hashes and verifications answered as the fuzzer likes, and what may never
// come out of it checked on every command.
#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/sha256.h"
#include "coordinator/job_machine.h"
#include "coordinator/small_job.h"
#include "plan/planner/planner.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_targets.h"

namespace headrace {
namespace {

constexpr int kWorkers = 4;
constexpr int kJobs = 3;
constexpr int64_t kSteps = 6;
// What the machine may say to one event, beside a multiple of what the event said.
constexpr size_t kAnswerBytes = 1 << 20;
constexpr size_t kAnswerTimes = 64;

PlanFunctions Planner() {
  PlanFunctions plan;
  plan.train = &PlanJob;
  plan.generate = &PlanGenerate;
  return plan;
}

v1::Dataset Tokens() {
  v1::Dataset dataset;
  dataset.set_sha256(Sha256Hex("tokens"));
  dataset.set_num_tokens(100000);
  dataset.set_max_token(255);
  dataset.set_token_bytes(1);
  return dataset;
}

std::string WorkerName(int worker) { return absl::StrCat("w", worker); }

struct Assigned {
  std::string instance, job_id;
  int64_t generation = 0, stage = 0;
  v1::Plan plan;
};

class Workers {
 public:
  explicit Workers(FuzzInput* input) : input_(input), machine_(Planner(), 0) {}

  void Step();

 private:
  void Join();
  void Submit();
  void Ask();
  void Report();
  void AnswerCall();
  void AnswerLongWork();
  v1::StageEvent MakeReport(const Assigned& assigned);
  v1::WeightsSlice MakeSlice(const Assigned& assigned);
  void Handle(const Event& event, size_t bytes = 0);
  void Check(const Command& command);
  std::string JobId() { return absl::StrCat("j", 1 + input_->Choice(kJobs)); }
  std::string Instance(const std::string& worker) {
    return absl::StrCat(worker, "#", instances_[worker]);
  }

  FuzzInput* const input_;
  JobMachine machine_;
  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  int64_t request_ = 0;
  uint64_t sequence_ = 0;
  std::map<std::string, int> instances_;
  std::map<std::string, uint64_t> beats_;
  std::map<std::string, Assigned> assigned_;  // by worker, the last
  std::deque<CallEnded> calls_;
  std::deque<HashWeights> hashes_;
  std::deque<VerifyCheckpoint> verifications_;
  // What was seen of each job.
  std::map<std::string, int64_t> generation_, saved_step_;
  std::map<std::string, std::set<int64_t>> verified_;
  std::map<std::string, v1::Job> saved_;
};

void Workers::Step() {
  const int what = input_->Choice(10);
  if (what == 0) return Join();
  if (what == 1) return Submit();
  if (what == 2) return Ask();
  if (what == 3) return AnswerLongWork();
  if (what <= 5) return AnswerCall();
  if (what <= 7) return Report();
  const std::string worker = WorkerName(input_->Choice(kWorkers));
  if (what == 8) {
    const uint8_t flags = input_->Byte();
    if (flags & 1) return Handle(WorkerLost{worker, Instance(worker), "no heartbeat"});
    WorkerBeat beat{worker, Instance(worker), "", beats_[worker] += flags >> 4};
    if (flags & 2) beat.job_id = assigned_[worker].job_id;
    beat.draining = (flags & 4) != 0;
    return Handle(beat);
  }
  now_ += absl::Milliseconds(100) * (1 + input_->Byte());
  Handle(TimePassed{});
}

void Workers::Join() {
  const std::string worker = WorkerName(input_->Choice(kWorkers));
  const uint8_t flags = input_->Byte();
  const std::string bytes = input_->Piece();
  v1::RegisterWorkerRequest request;
  request.ParsePartialFromString(bytes);
  v1::WorkerInfo* info = request.mutable_worker();
  if (!(flags & 1)) ++instances_[worker];
  info->set_name(worker);
  info->set_instance(Instance(worker));
  info->set_address("127.0.0.1:1");
  info->set_memory_limit_bytes(std::clamp<int64_t>(info->memory_limit_bytes(), 1 << 24, 1 << 30));
  info->set_threads(std::clamp<int64_t>(info->threads(), 1, 4096));
  info->clear_sim();
  if (!(info->flops_per_second() >= 0 && info->flops_per_second() < 1e18)) {
    info->clear_flops_per_second();
  }
  WorkerJoined joined{*info, std::nullopt, {request.held().begin(), request.held().end()}};
  if (request.has_standing()) joined.standing = request.standing();
  if (flags & 2) {
    const Assigned& was = assigned_[worker];
    joined.standing.emplace();
    joined.standing->set_job_id(was.job_id);
    joined.standing->set_generation(was.generation);
    joined.standing->set_stage(was.stage);
    joined.standing->set_step(flags >> 4);
    joined.worker.set_job_id(was.job_id);
  }
  Handle(joined, bytes.size());
}

void Workers::Submit() {
  if (saved_.size() >= kJobs) return;
  JobSubmitted submitted;
  submitted.request = ++request_;
  const uint8_t flags = input_->Byte();
  submitted.spec = SmallJob("job", flags & 3);
  submitted.dataset = Tokens();
  submitted.spec.mutable_training()->set_steps(kSteps);
  if (flags & 4) submitted.spec.mutable_recovery()->set_restart(v1::SWITCH_AUTO);
  if (flags & 8) submitted.spec.mutable_checkpoint()->set_every_steps(2);
  submitted.spec.mutable_recovery()->set_on_nan(
      static_cast<v1::NanPolicy>(input_->Choice(v1::NanPolicy_ARRAYSIZE)));
  if (flags & 16) submitted.spec.mutable_recovery()->set_elastic(v1::SWITCH_OFF);
  submitted.spec.mutable_checkpoint()->set_keep_last(1 + (flags >> 6));
  Handle(submitted);
}

void Workers::Ask() {
  const uint8_t flags = input_->Byte();
  const std::string job = JobId();
  switch (flags % 5) {
    case 0:
      return Handle(CancelRequested{++request_, job});
    case 1:
      return Handle(CheckpointRequested{++request_, job});
    case 2:
      return Handle(PauseRequested{++request_, job});
    case 3: {
      const auto saved = saved_.find(job);
      if (saved == saved_.end()) return;
      ResumeRequested resume{++request_, job, {}};
      resume.stored.job = saved->second;
      return Handle(resume);
    }
    default:
      return Handle(CordonRequested{++request_, WorkerName(input_->Choice(kWorkers)),
                                    (flags & 16) != 0, (flags & 32) != 0});
  }
}

v1::WeightsSlice Workers::MakeSlice(const Assigned& assigned) {
  v1::WeightsSlice slice;
  const v1::StagePlan& plan = assigned.plan.stage(static_cast<int>(assigned.stage));
  slice.set_first_layer(plan.first_layer());
  slice.set_end_layer(plan.end_layer());
  slice.set_sha256(Sha256Hex(absl::StrCat(assigned.stage)));
  slice.set_size_bytes(1000);
  return slice;
}

// One that fits the stage, of what kind the fuzzer likes.
v1::StageEvent Workers::MakeReport(const Assigned& assigned) {
  v1::StageEvent event;
  const int kind = input_->Choice(9);
  const uint8_t detail = input_->Byte();
  const int64_t step = detail & 7;
  const bool last = assigned.stage + 1 == assigned.plan.stages();
  if (kind == 0) {
    event.mutable_ready();
  } else if (kind == 1) {
    event.mutable_connected();
  } else if (kind == 2 || kind == 3) {
    event.mutable_step()->set_step(step);
    if (last) event.mutable_step()->set_loss(2.5);
    if (detail & 8) event.mutable_step()->set_skipped("the loss is NaN");
  } else if (kind == 4) {
    *event.mutable_finished()->mutable_weights() = MakeSlice(assigned);
    event.mutable_finished()->set_weights_step(kSteps);
    if (detail & 8) event.mutable_finished()->set_stop_reason("the loss is NaN");
  } else if (kind == 5) {
    event.mutable_snapshot()->set_step(step);
    *event.mutable_snapshot()->mutable_slice() = MakeSlice(assigned);
    event.mutable_snapshot()->set_in_store((detail & 8) != 0);
    if (detail & 16) event.mutable_snapshot()->set_holder(WorkerName(detail >> 6));
    if (detail & 32) event.mutable_snapshot()->set_failed("disk full");
  } else if (kind == 6) {
    event.mutable_left()->set_step(step);
  } else if (kind == 7) {
    event.mutable_rollback()->set_bad_step(step);
    event.mutable_rollback()->set_reason("the loss is NaN");
  } else {
    event.mutable_failed()->set_reason("failed");
    event.mutable_failed()->set_step(step);
    if (detail & 8) event.mutable_failed()->set_blamed_worker(WorkerName(detail >> 6));
    if (detail & 16) event.mutable_failed()->set_bad_slice(MakeSlice(assigned).sha256());
  }
  return event;
}

void Workers::Report() {
  const std::string worker = WorkerName(input_->Choice(kWorkers));
  const Assigned& assigned = assigned_[worker];
  const uint8_t flags = input_->Byte();
  StageReported reported{worker, Instance(worker), {}};
  size_t bytes = 0;
  if (flags & 1) {
    const std::string piece = input_->Piece();
    bytes = piece.size();
    reported.event.ParsePartialFromString(piece);
  } else {
    if (assigned.plan.stages() == 0) return;
    reported.event = MakeReport(assigned);
  }
  if (!(flags & 2)) {
    reported.event.set_job_id(assigned.job_id);
    reported.event.set_generation(assigned.generation);
    reported.event.set_stage(assigned.stage);
  }
  if (!(flags & 4)) reported.event.set_sequence(++sequence_);
  Handle(reported, bytes);
}

void Workers::AnswerCall() {
  if (calls_.empty()) return;
  const uint8_t flags = input_->Byte();
  const size_t which = (flags & 8) != 0 ? calls_.size() - 1 : 0;
  CallEnded call = calls_[which];
  calls_.erase(calls_.begin() + static_cast<std::ptrdiff_t>(which));
  if (flags % 4 == 1) call.status = absl::UnavailableError("connection refused");
  if (flags % 4 == 2) call.status = absl::FailedPreconditionError("busy");
  call.stop.set_busy((flags & 16) != 0);
  call.stop.set_last_heartbeat(beats_[call.worker]);
  Handle(call);
}

void Workers::AnswerLongWork() {
  const uint8_t flags = input_->Byte();
  if (!hashes_.empty()) {
    WeightsHashed hashed{hashes_.front().job_id, hashes_.front().generation, Sha256Hex("weights")};
    hashes_.pop_front();
    if (flags & 1) hashed.sha256 = absl::NotFoundError("slice 0 is not in the store");
    Handle(hashed);
  }
  if (verifications_.empty()) return;
  const VerifyCheckpoint asked = verifications_.front();
  verifications_.pop_front();
  CheckpointVerified verified{asked.job_id, asked.generation, asked.checkpoint, absl::OkStatus()};
  if (flags & 2) {
    verified.status = absl::DataLossError("slice 0 is damaged");
  } else {
    verified_[asked.job_id].insert(asked.checkpoint.step());
  }
  Handle(verified);
}

void Workers::Handle(const Event& event, size_t bytes) {
  Commands out;
  machine_.Handle(event, now_, &out);
  size_t answered = 0;
  for (const Command& command : out) {
    Check(command);
    if (const auto* save = std::get_if<SaveJob>(&command)) answered += save->job.ByteSizeLong();
    if (const auto* save = std::get_if<SaveEvent>(&command)) answered += save->event.ByteSizeLong();
    if (const auto* keep = std::get_if<KeepTrace>(&command)) answered += keep->trace.ByteSizeLong();
  }
  FUZZ_CHECK(answered <= kAnswerBytes + kAnswerTimes * bytes, "an answer out of proportion");
}

void Workers::Check(const Command& command) {
  if (const auto* assign = std::get_if<AssignCall>(&command)) {
    const v1::StageAssignment& a = assign->assignment;
    FUZZ_CHECK(a.generation() >= generation_[a.job_id()], "a generation that is over is assigned");
    generation_[a.job_id()] = a.generation();
    assigned_[assign->worker] = {assign->instance, a.job_id(), a.generation(), a.stage(), a.plan()};
    calls_.push_back({CallKind::kAssign,
                      assign->worker,
                      assign->instance,
                      a.job_id(),
                      a.generation(),
                      absl::OkStatus(),
                      {},
                      {}});
  } else if (const auto* start = std::get_if<StartCall>(&command)) {
    FUZZ_CHECK(start->generation == generation_[start->job_id], "an old generation is started");
    calls_.push_back({CallKind::kStart,
                      start->worker,
                      start->instance,
                      start->job_id,
                      start->generation,
                      absl::OkStatus(),
                      {},
                      {}});
  } else if (const auto* stop = std::get_if<StopCall>(&command)) {
    calls_.push_back({CallKind::kStop,
                      stop->worker,
                      stop->instance,
                      stop->job_id,
                      stop->generation,
                      absl::OkStatus(),
                      {},
                      {}});
  } else if (const auto* control = std::get_if<ControlCall>(&command)) {
    calls_.push_back({CallKind::kControl,
                      control->worker,
                      control->instance,
                      control->job_id,
                      control->generation,
                      absl::OkStatus(),
                      {},
                      {}});
  } else if (const auto* hash = std::get_if<HashWeights>(&command)) {
    hashes_.push_back(*hash);
  } else if (const auto* verify = std::get_if<VerifyCheckpoint>(&command)) {
    verifications_.push_back(*verify);
  } else if (const auto* save = std::get_if<SaveCheckpoint>(&command)) {
    const v1::Checkpoint& checkpoint = save->checkpoint;
    FUZZ_CHECK(!checkpoint.damaged().empty() || verified_[save->job_id].contains(checkpoint.step()),
               "a checkpoint is kept that nobody has verified");
  } else if (const auto* step = std::get_if<SaveStep>(&command)) {
    int64_t& last = saved_step_[step->job_id];
    FUZZ_CHECK(step->step.step() > last, "a step is counted twice");
    last = step->step.step();
  } else if (const auto* job = std::get_if<SaveJob>(&command)) {
    saved_[job->job.id()] = job->job;
  }
}

}  // namespace

void FuzzMachine(std::string_view bytes) {
  FuzzInput input(bytes);
  Workers workers(&input);
  while (!input.done()) workers.Step();
}

}  // namespace headrace
