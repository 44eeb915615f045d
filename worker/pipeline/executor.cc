#include "worker/pipeline/executor.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/fault_point.h"
#include "common/status.h"
#include "worker/pipeline/timed_span.h"

namespace headrace {
namespace {

// Adds the seconds of its own life to `total`.
class Stopwatch {
 public:
  explicit Stopwatch(double* total) : total_(total), start_(absl::Now()) {}
  ~Stopwatch() { *total_ += absl::ToDoubleSeconds(absl::Now() - start_); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double* const total_;
  const absl::Time start_;
};

}  // namespace

Executor::Executor(const StageJob* job, const StageParts& parts)
    : job_(*job),
      parts_(parts),
      model_(*parts.model),
      stash_(*parts.stash),
      codec_(*parts.codec),
      exchange_(*parts.exchange),
      update_(job, parts),
      evaluation_(job, parts),
      hasher_(parts.device),
      recomputes_(job->micro_batches.size()) {
  for (const Action& action : job_.actions) {
    if (action.kind == ActionKind::kRecompute) recomputes_[action.micro_batch] = true;
  }
}

absl::StatusOr<StepOutcome> Executor::RunStep(int64_t step) {
  absl::StatusOr<StepOutcome> outcome = RunWhole(step);
  // What the device or memory says knows nothing of steps; the exchange's own sentences do.
  if (outcome.ok() || absl::IsCancelled(outcome.status()) ||
      absl::StartsWith(outcome.status().message(), "worker ")) {
    return outcome;
  }
  return exchange_.Failure(outcome.status().code(), std::string(outcome.status().message()));
}

absl::StatusOr<StepOutcome> Executor::RunWhole(int64_t step) {
  step_ = step;
  times_ = {};
  const absl::Duration received = exchange_.waited_to_receive(), sent = exchange_.waited_to_send();
  StepOutcome outcome;
  Decision decision;
  {
    Stopwatch wall(&times_.wall);
    HEADRACE_RETURN_IF_ERROR(RunActions());
    HEADRACE_ASSIGN_OR_RETURN(decision, FinishMiniBatch());
  }
  outcome.verdict = decision.verdict;
  outcome.reason = decision.reason;
  Report(decision, &outcome.report);
  outcome.report.mutable_seconds()->set_wait_receive(
      absl::ToDoubleSeconds(exchange_.waited_to_receive() - received));
  outcome.report.mutable_seconds()->set_wait_send(
      absl::ToDoubleSeconds(exchange_.waited_to_send() - sent));
  if (!decision.verdict.breaks_off() && evaluation_.IsDueAfter(step)) {
    HEADRACE_ASSIGN_OR_RETURN(const double loss, evaluation_.Run(step));
    if (job_.last()) outcome.report.set_validation_loss(loss);
  }
  return outcome;
}

absl::Status Executor::RunActions() {
  exchange_.MoveTo({step_, -1});
  HEADRACE_RETURN_IF_ERROR(FaultPoint("step_start"));
  parts_.losses->Clear();
  if (job_.hash_tensors) {
    model_.Observe([this](std::string_view name, const Tensor& t) { hasher_.Add(name, t); });
  }
  {
    TimedSpan zero(&exchange_, v1::SPAN_KIND_ZERO_GRADIENTS, &times_.compute);
    model_.ZeroGradients();
  }
  for (const Action& action : job_.actions) {
    exchange_.MoveTo({step_, action.micro_batch});
    HEADRACE_RETURN_IF_ERROR(parts_.CheckNotCancelled());
    HEADRACE_RETURN_IF_ERROR(Run(action));
    HEADRACE_RETURN_IF_ERROR(exchange_.CheckDevice());
  }
  model_.Observe(nullptr);
  return absl::OkStatus();
}

absl::Status Executor::Run(const Action& action) {
  switch (action.kind) {
    case ActionKind::kForward:
      return Forward(action.micro_batch);
    case ActionKind::kRecompute:
      return Recompute(action.micro_batch);
    case ActionKind::kBackward:
      return Backward(action.micro_batch);
  }
  return absl::InternalError("unknown action");
}

absl::Status Executor::Forward(int m) {
  HEADRACE_ASSIGN_OR_RETURN(const void* input, TakeBoundary(m));
  void* kept = nullptr;
  if (!recomputes_[m]) {
    HEADRACE_ASSIGN_OR_RETURN(kept, stash_.OpenWorkingSet(m));
  }
  Outgoing output;
  if (!job_.last()) {
    HEADRACE_ASSIGN_OR_RETURN(
        output, exchange_.Prepare(v1::MESSAGE_KIND_ACTIVATION, job_.BoundaryShape(m)));
  }
  exchange_.Record("forward");
  {
    TimedSpan forward(&exchange_, v1::SPAN_KIND_FORWARD, &times_.compute);
    const Act y = codec_.Output(output.tensor);
    model_.Forward(Describe(m), Converted(m, input), y, kept);
    codec_.Close(y, output.tensor);
  }
  HEADRACE_RETURN_IF_ERROR(FaultPoint("mid_forward"));
  if (job_.last()) return absl::OkStatus();
  return exchange_.Send(job_.stage() + 1, std::move(output));
}

absl::Status Executor::Recompute(int m) {
  HEADRACE_ASSIGN_OR_RETURN(void* kept, stash_.OpenWorkingSet(m));
  exchange_.Record("recompute");
  TimedSpan recompute(&exchange_, v1::SPAN_KIND_RECOMPUTE, &times_.recompute);
  model_.Recompute(Describe(m), Converted(m, stash_.boundary(m)), kept);
  return absl::OkStatus();
}

absl::Status Executor::Backward(int m) {
  Received output_gradient;
  if (!job_.last()) {
    HEADRACE_ASSIGN_OR_RETURN(output_gradient,
                              exchange_.Take(v1::MESSAGE_KIND_GRADIENT, job_.stage() + 1));
  }
  Outgoing input_gradient;
  if (!job_.first()) {
    HEADRACE_ASSIGN_OR_RETURN(input_gradient,
                              exchange_.Prepare(v1::MESSAGE_KIND_GRADIENT, job_.BoundaryShape(m)));
  }
  HEADRACE_ASSIGN_OR_RETURN(const MicroBatch mb, DescribeBackward(m));
  exchange_.Record("backward");
  {
    TimedSpan backward(&exchange_, v1::SPAN_KIND_BACKWARD, &times_.compute);
    const Act dx = codec_.InputGradient(input_gradient.tensor);
    model_.Backward(mb, Converted(m, stash_.boundary(m)), stash_.working_set(m),
                    codec_.OutputGradient(output_gradient.tensor), dx);
    codec_.Close(dx, input_gradient.tensor);
  }
  HEADRACE_RETURN_IF_ERROR(FaultPoint("mid_backward"));
  stash_.Release(m);
  output_gradient = Received{};
  if (job_.first()) return absl::OkStatus();
  return exchange_.Send(job_.stage() - 1, std::move(input_gradient));
}

absl::StatusOr<const void*> Executor::TakeBoundary(int m) {
  if (job_.first()) {
    HEADRACE_ASSIGN_OR_RETURN(void* ids, stash_.OpenBoundary(m));
    Stopwatch compute(&times_.compute);
    HEADRACE_RETURN_IF_ERROR(
        parts_.tokens->Write(ids, job_.micro_batches[m].tokens(), [&](int32_t* tokens) {
          parts_.sampler->Training(step_, job_.first_sequence[m], job_.micro_batches[m].sequences,
                                   tokens, nullptr);
        }));
    return ids;
  }
  HEADRACE_ASSIGN_OR_RETURN(Received activation,
                            exchange_.Take(v1::MESSAGE_KIND_ACTIVATION, job_.stage() - 1));
  stash_.KeepBoundary(m, std::move(activation.slot));
  return stash_.boundary(m);
}

const void* Executor::Converted(int m, const void* boundary) {
  return codec_.Input(boundary, job_.micro_batches[m].tokens() * job_.shape.model.width);
}

MicroBatch Executor::Describe(int m) const {
  MicroBatch mb;
  mb.shape = job_.micro_batches[m];
  mb.seed = job_.training.seed();
  mb.step = step_;
  mb.micro_batch = m;
  return mb;
}

absl::StatusOr<MicroBatch> Executor::DescribeBackward(int m) {
  MicroBatch mb = Describe(m);
  if (!job_.last()) return mb;
  HEADRACE_ASSIGN_OR_RETURN(mb.targets,
                            parts_.tokens->Targets(mb.shape.tokens(), [&](int32_t* tokens) {
                              parts_.sampler->Training(step_, job_.first_sequence[m],
                                                       mb.shape.sequences, nullptr, tokens);
                            }));
  mb.loss = parts_.losses->data() + m;
  mb.loss_scale = static_cast<float>(1.0 / static_cast<double>(job_.tokens()));
  return mb;
}

absl::StatusOr<Decision> Executor::FinishMiniBatch() {
  exchange_.MoveTo({step_, -1});
  HEADRACE_RETURN_IF_ERROR(parts_.CheckNotCancelled());
  // Everything here but waiting is the optimizer's.
  const absl::Time start = absl::Now();
  const absl::Duration waited = exchange_.waited_to_receive() + exchange_.waited_to_send();
  HEADRACE_RETURN_IF_ERROR(update_.JoinTie());
  if (job_.hash_tensors) HashParameters("gradient ", &Parameter::gradient);
  HEADRACE_ASSIGN_OR_RETURN(const double loss, MeanLoss());
  HEADRACE_RETURN_IF_ERROR(FaultPoint("reduce"));
  HEADRACE_ASSIGN_OR_RETURN(const Decision decision, update_.Decide(step_, loss));
  HEADRACE_RETURN_IF_ERROR(FaultPoint("optimizer"));
  if (decision.verdict.applied()) {
    exchange_.Record("update");
    HEADRACE_RETURN_IF_ERROR(update_.Apply(step_, decision));
    if (job_.hash_tensors) HashParameters("weight ", &Parameter::weight);
  }
  HEADRACE_RETURN_IF_ERROR(exchange_.CheckDevice());
  times_.optimizer = absl::ToDoubleSeconds(
      absl::Now() - start - (exchange_.waited_to_receive() + exchange_.waited_to_send() - waited));
  return decision;
}

absl::StatusOr<double> Executor::MeanLoss() {
  if (!job_.last()) return 0.0;
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<double>* const losses, parts_.losses->Read());
  double sum = 0;
  for (const double loss : *losses) sum += loss;
  return sum / static_cast<double>(job_.tokens());
}

void Executor::HashParameters(const char* prefix, Tensor Parameter::*tensor) {
  for (const Parameter& parameter : model_.parameters()) {
    if (parameter.borrowed) continue;
    hasher_.Add(absl::StrCat(prefix, parameter.spec.name), parameter.*tensor);
  }
}

void Executor::Report(const Decision& decision, v1::StageStep* report) {
  report->set_step(step_);
  report->set_skipped(decision.reason);
  v1::StageSeconds* seconds = report->mutable_seconds();
  seconds->set_stage(job_.stage());
  seconds->set_wall(times_.wall);
  seconds->set_compute(times_.compute);
  seconds->set_recompute(times_.recompute);
  seconds->set_optimizer(times_.optimizer);
  if (job_.hash_tensors) *report->mutable_tensor_hashes() = hasher_.Drain(step_, job_.stage());
  if (!job_.last()) return;
  report->set_loss(decision.loss);
  report->set_gradient_norm(decision.gradient_norm);
  report->set_learning_rate(LearningRate(job_.training, step_));
  report->set_tokens(job_.tokens());
}

}  // namespace headrace
