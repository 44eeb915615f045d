// For tests: all stages of a job in one process, one thread each, joined by memory instead of a
// network. Everything else is the real thing: assignment, equipment, executor, inbox, credits.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/status.h"
#include "common/token_file.h"
#include "worker/assignment.h"
#include "worker/checkpoint/state_slice.h"
#include "worker/pipeline/executor.h"
#include "worker/pipeline/generate.h"
#include "worker/pipeline/stage_equipment.h"

namespace headrace::testing {

// Copies into the receivers' inboxes at once, holding credits as a link does.
class InMemoryOutbox final : public Outbox {
 public:
  InMemoryOutbox(int credits, std::vector<Inbox*> inboxes)
      : credits_(credits), inboxes_(std::move(inboxes)) {}

  absl::Status Send(int to_stage, Outgoing outgoing, absl::Time deadline) override {
    {
      absl::MutexLock lock(&mu_);
      int& in_flight = in_flight_[{to_stage, CreditClassOf(outgoing.tag.kind)}];
      if (IsPipelined(outgoing.tag.kind)) {
        const auto free = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
          return closed_ || in_flight < credits_;
        };
        if (!mu_.AwaitWithDeadline(absl::Condition(&free), deadline)) {
          return absl::DeadlineExceededError("no credit");
        }
        if (closed_) return absl::CancelledError("closed");
        ++in_flight;
        boundary_bytes_ += outgoing.tensor.bytes();
      }
    }
    absl::StatusOr<Received> received =
        inboxes_[to_stage]->Prepare(outgoing.tag, outgoing.tensor.type, outgoing.tensor.shape);
    if (!received.ok()) return received.status();
    std::memcpy(received->tensor.data, outgoing.tensor.data, outgoing.tensor.bytes());
    return inboxes_[to_stage]->Put(*std::move(received));
  }

  // The receiver took a tensor.
  void ReturnCredit(int to_stage, v1::MessageKind kind) {
    if (!IsPipelined(kind)) return;
    absl::MutexLock lock(&mu_);
    --in_flight_[{to_stage, CreditClassOf(kind)}];
  }

  // Bytes of all activations and gradients sent.
  int64_t boundary_bytes() {
    absl::MutexLock lock(&mu_);
    return boundary_bytes_;
  }

  absl::Status Finish(absl::Time) override { return absl::OkStatus(); }
  void Close() override {
    absl::MutexLock lock(&mu_);
    closed_ = true;
  }

 private:
  const int credits_;
  const std::vector<Inbox*> inboxes_;
  absl::Mutex mu_;
  std::map<std::pair<int, CreditClass>, int> in_flight_ ABSL_GUARDED_BY(mu_);
  int64_t boundary_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

// Token `i` of a text of `count` tokens below `vocabulary`, as the blob store holds it.
inline void WriteTokens(const std::string& path, int64_t count, int64_t vocabulary) {
  std::string tokens;
  int64_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t token = (i * i * 7 + i * 3 + i / 5) % vocabulary;
    largest = std::max(largest, token);
    tokens.push_back(static_cast<char>(token));
  }
  std::ofstream(path, std::ios::binary) << TokenHeader(1, count, largest) << tokens;
}

// A schedule's list for one stage, written from its drawing and not by the planner. `recompute(m)`
// says whether m is recomputed; its R stands right before its B.
template <typename Recompute>
std::string ActionsText(bool one_f_one_b, int stage, int num_stages, int micro_batches,
                        const Recompute& recompute) {
  std::vector<std::string> words;
  const auto forward = [&](int m) { words.push_back(absl::StrCat(stage, "F", m)); };
  const auto backward = [&](int m) {
    if (recompute(m)) words.push_back(absl::StrCat(stage, "R", m));
    words.push_back(absl::StrCat(stage, "B", m));
  };
  // 1F1B: stage k runs K − k micro-batches ahead; fill–drain: all of them.
  const int ahead = one_f_one_b ? std::min(num_stages - stage, micro_batches) : micro_batches;
  int f = 0;
  while (f < ahead) forward(f++);
  for (int b = 0; b < micro_batches; ++b) {
    backward(b);
    if (f < micro_batches) forward(f++);
  }
  std::string text;
  for (const std::string& word : words) absl::StrAppend(&text, text.empty() ? "" : " ", word);
  return text;
}

// Cuts `layers` layers into `num_stages` parts and names the workers.
template <typename Recompute>
void FillPlan(v1::StageAssignment* assignment, int layers, int num_stages, bool one_f_one_b,
              const Recompute& recompute) {
  assignment->clear_plan();
  assignment->clear_peers();
  int first = 0;
  for (int k = 0; k < num_stages; ++k) {
    v1::StagePlan* stage = assignment->mutable_plan()->add_stage();
    stage->set_stage(k);
    stage->set_first_layer(first);
    first += layers / num_stages + (k < layers % num_stages ? 1 : 0);
    stage->set_end_layer(first);
    stage->set_actions(ActionsText(one_f_one_b, k, num_stages,
                                   static_cast<int>(assignment->spec().training().micro_batches()),
                                   recompute));
    v1::Peer* peer = assignment->add_peers();
    peer->set_stage(k);
    peer->set_worker(absl::StrCat("w", k));
    peer->set_address(absl::StrCat("127.0.0.1:", 7000 + k));
  }
}

// What one stage has to show for a run.
struct StageResult {
  absl::Status status;
  std::vector<v1::StageStep> steps;
  Verdict verdict;      // of the last step run
  std::string reason;   // why that was not applied
  std::string weights;  // own parameters' bytes in layer order
  StateFile state;      // with KeepStateIn
  std::vector<int32_t> drawn;
  v1::MemoryBytes peak;
  StageBytes predicted;
  int64_t boundary_bytes = 0;  // sent
  std::vector<std::string> flight;
};

// What a run does besides; all may be left out.
struct PipelineOptions {
  // Opens the device of stages whose tensors do not lie in host memory.
  std::map<int, DeviceOpener> devices = {};
  // Slices of the state that the assignment's start_step is about.
  std::vector<StateFile> from = {};
  // At the end each stage's state is written into this folder.
  std::string keep_state_in = {};
  // Of stage 0, as StageParts has them.
  std::function<Verdict(int64_t step)> wishes = nullptr;
  // On the stage's thread.
  std::function<void(int stage, int64_t step, std::vector<Parameter>* parameters)> before_step =
      nullptr;
};

class InMemoryPipeline {
 public:
  // All stages of `assignment`, whose own stage number does not matter.
  InMemoryPipeline(const v1::StageAssignment& assignment, std::string tokens_path,
                   PipelineOptions options = {})
      : tokens_path_(std::move(tokens_path)), options_(std::move(options)) {
    for (int k = 0; k < assignment.plan().stage_size(); ++k) {
      v1::StageAssignment mine = assignment;
      mine.set_stage(k);
      for (const StateFile& file : options_.from) *mine.add_weights() = file.slice;
      stages_.push_back(std::make_unique<Stage>());
      WorkerLimits limits{int64_t{1} << 32, 1, CpuMultipliesBf16()};
      if (const auto at = options_.devices.find(k); at != options_.devices.end()) {
        limits.device = DeviceKind::kCuda;
        limits.staging_bytes = int64_t{1} << 30;
        stages_.back()->open = at->second;
      }
      absl::StatusOr<StageJob> job = CheckAssignment(mine, limits);
      if (!job.ok()) {
        stages_.back()->result.status = job.status();
        return;
      }
      stages_.back()->job = *std::move(job);
    }
  }

  // Runs all steps; one thread a stage builds, computes and tears down, as a worker does.
  std::vector<StageResult> Run() {
    std::vector<StageResult> results;
    if (!stages_.back()->result.status.ok()) return {stages_.back()->result};
    std::vector<std::thread> threads;
    for (auto& stage : stages_) threads.emplace_back([this, s = stage.get()] { RunStage(s); });
    for (std::thread& thread : threads) thread.join();
    for (auto& stage : stages_) results.push_back(std::move(stage->result));
    return results;
  }

 private:
  struct Stage {
    StageJob job;
    DeviceOpener open = OpenCpu;
    std::unique_ptr<StageEquipment> equipment;
    std::unique_ptr<InMemoryOutbox> outbox;
    FlightRecorder recorder;
    SpanRecorder spans{SpanRecorder::kMaxCapacity};
    std::atomic<bool> cancelled = false;
    int64_t last_step = 0;
    StageResult result;
  };

  void RunStage(Stage* stage) {
    stage->result.status = Build(stage);
    Meet();
    if (stage->result.status.ok()) Connect(stage);
    Meet();
    if (stage->result.status.ok()) stage->result.status = Compute(stage);
    if (!stage->result.status.ok()) {
      for (auto& other : stages_) {
        if (other->equipment != nullptr) other->equipment->inbox()->Close();
        if (other->outbox != nullptr) other->outbox->Close();
      }
    }
    Meet();
    if (stage->equipment == nullptr) return;
    stage->result.peak = stage->equipment->PeakMemory();
    stage->result.predicted = StageMemory(stage->job.shape, stage->job.actions);
    if (stage->outbox != nullptr) stage->result.boundary_bytes = stage->outbox->boundary_bytes();
    stage->result.flight = stage->recorder.Entries();
    if (stage->result.status.ok() && !options_.keep_state_in.empty()) {
      stage->result.status = KeepState(stage);
    }
    for (const Parameter& p : stage->equipment->model()->parameters()) {
      if (p.borrowed) continue;
      VisitBytes(stage->equipment->device(), p.weight, p.spec.name,
                 [stage](std::string_view bytes) { stage->result.weights.append(bytes); })
          .IgnoreError();
    }
  }

  // Waits until every stage's thread has come here.
  void Meet() {
    absl::MutexLock lock(&mu_);
    const size_t n = stages_.size();
    const size_t meeting = arrived_++ / n;
    const auto all = [&]()
                         ABSL_SHARED_LOCKS_REQUIRED(mu_) { return arrived_ >= (meeting + 1) * n; };
    mu_.Await(absl::Condition(&all));
  }

  absl::Status Build(Stage* stage) {
    HEADRACE_ASSIGN_OR_RETURN(stage->equipment, StageEquipment::Create(&stage->job, stage->open));
    HEADRACE_RETURN_IF_ERROR(Fill(stage));
    if (stage->job.generates || (!stage->job.first() && !stage->job.last())) {
      return absl::OkStatus();
    }
    return stage->equipment->OpenData(tokens_path_);
  }

  absl::Status Fill(Stage* stage) {
    StageEquipment& e = *stage->equipment;
    if (stage->job.start_step == 0) {
      e.model()->Initialise(stage->job.training.seed());
      return absl::OkStatus();
    }
    std::string bad_slice;
    HEADRACE_RETURN_IF_ERROR(LoadState(options_.from, stage->job.start_step,
                                       &e.model()->parameters(), *e.optimizer(), e.device(),
                                       &bad_slice));
    e.model()->RoundWeights();
    return absl::OkStatus();
  }

  absl::Status KeepState(Stage* stage) {
    StageEquipment& e = *stage->equipment;
    StateFile& state = stage->result.state;
    state.path =
        absl::StrCat(options_.keep_state_in, "/", stage->job.num_stages(), "-", stage->job.stage());
    state.slice.set_first_layer(stage->job.shape.layers.front().index);
    state.slice.set_end_layer(stage->job.shape.layers.back().index + 1);
    state.slice.set_sha256(std::string(64, 'a'));
    return WriteState(state.path, OwnState(e.model()->parameters(), *e.optimizer()),
                      stage->last_step, e.device())
        .status();
  }

  void Connect(Stage* stage) {
    std::vector<Inbox*> inboxes;
    for (auto& other : stages_) inboxes.push_back(other->equipment->inbox());
    stage->outbox = std::make_unique<InMemoryOutbox>(static_cast<int>(stage->job.shape.credits),
                                                     std::move(inboxes));
    stage->equipment->inbox()->OnTaken([this, stage](const Tag& tag) {
      stages_[tag.from_stage]->outbox->ReturnCredit(stage->job.stage(), tag.kind);
    });
  }

  absl::Status Compute(Stage* stage) {
    StageEquipment& e = *stage->equipment;
    Exchange exchange(&stage->job, e.pools(), e.inbox(), stage->outbox.get(), &stage->recorder,
                      &stage->spans, e.device());
    StageParts parts = e.Parts(&exchange, &stage->cancelled);
    if (stage->job.first()) parts.wishes = options_.wishes;
    if (stage->job.generates) {
      return Generate(stage->job, parts,
                      [stage](int32_t token) { stage->result.drawn.push_back(token); });
    }
    Executor executor(&stage->job, parts);
    stage->last_step = stage->job.start_step;
    for (int64_t step = stage->job.start_step + 1; step <= stage->job.training.steps(); ++step) {
      if (stage->job.Skips(step)) continue;
      if (options_.before_step) {
        options_.before_step(stage->job.stage(), step, &e.model()->parameters());
      }
      HEADRACE_ASSIGN_OR_RETURN(StepOutcome outcome, executor.RunStep(step));
      stage->result.verdict = outcome.verdict;
      stage->result.reason = outcome.reason;
      if (outcome.verdict.breaks_off()) return absl::OkStatus();
      stage->last_step = step;
      stage->result.steps.push_back(std::move(outcome.report));
      if (outcome.verdict.leave) return absl::OkStatus();
    }
    return absl::OkStatus();
  }

  const std::string tokens_path_;
  const PipelineOptions options_;
  std::vector<std::unique_ptr<Stage>> stages_;
  absl::Mutex mu_;
  size_t arrived_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace headrace::testing
