#include "worker/pipeline/update.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "worker/pipeline/timed_span.h"

namespace headrace {
namespace {

const char* Spell(double value) {
  if (std::isnan(value)) return "NaN";
  return value > 0 ? "infinite" : "negative infinite";
}

}  // namespace

double ClipScale(double clip_norm, double norm) {
  if (clip_norm <= 0) return 1;
  return std::min(1.0, clip_norm / (norm + 1e-6));
}

Update::Update(const StageJob* job, const StageParts& parts)
    : job_(*job),
      model_(parts.model),
      optimizer_(parts.optimizer),
      ops_(parts.ops),
      exchange_(parts.exchange),
      wishes_(parts.wishes),
      spikes_(job->recovery.spike_factor(), job->recent_losses),
      squares_(parts.squares) {
  const std::vector<Parameter>& parameters = model_->parameters();
  for (auto parameter = parameters.rbegin(); parameter != parameters.rend(); ++parameter) {
    if (parameter->borrowed) continue;
    normed_.push_back(&*parameter);
    gradients_.emplace_back(parameter->gradient.f32(),
                            static_cast<size_t>(parameter->gradient.elements()));
  }
  if (!job_.shape.model.tied) return;
  for (Parameter& parameter : model_->parameters()) {
    if (parameter.borrowed) borrowed_ = &parameter;
  }
  // Layer 0 owns the tie: its first parameter is the token embedding.
  if (job_.first()) tied_ = &model_->parameters().front();
}

absl::Status Update::JoinTie() {
  if (borrowed_ != nullptr && tied_ != nullptr) {  // K = 1: the same sum, in the same order
    TimedSpan tie(exchange_, v1::SPAN_KIND_TIE);
    float* g = tied_->gradient.f32();
    ops_->Add(g, borrowed_->gradient.f32(), g, tied_->gradient.elements());
    return absl::OkStatus();
  }
  if (borrowed_ != nullptr) {
    // It is not written again before the new weight has come, and so after this has arrived.
    return SendInPlace(v1::MESSAGE_KIND_TIED_GRADIENT, 0, borrowed_->gradient);
  }
  if (tied_ != nullptr) {
    HEADRACE_ASSIGN_OR_RETURN(const Received share, exchange_->Take(v1::MESSAGE_KIND_TIED_GRADIENT,
                                                                    job_.num_stages() - 1));
    TimedSpan tie(exchange_, v1::SPAN_KIND_TIE);
    float* g = tied_->gradient.f32();
    ops_->Add(g, share.tensor.f32(), g, tied_->gradient.elements());
  }
  return absl::OkStatus();
}

absl::Status Update::SendInPlace(v1::MessageKind kind, int to_stage, const Tensor& tensor) {
  Outgoing outgoing;
  outgoing.tag.kind = kind;
  outgoing.tensor = tensor;
  return exchange_->Send(to_stage, std::move(outgoing));
}

absl::StatusOr<double> Update::AddSquaredNorms(double sum) {
  TimedSpan norm(exchange_, v1::SPAN_KIND_NORM);
  bad_parameter_.clear();
  ops_->SquaredNorms(gradients_, squares_->data());
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<double>* const read, squares_->Read());
  for (size_t i = 0; i < normed_.size(); ++i) {
    if (!std::isfinite((*read)[i])) bad_parameter_ = normed_[i]->spec.name;
    sum += (*read)[i];
  }
  return sum;
}

absl::StatusOr<Decision> Update::Decide(int64_t step, double loss) {
  double sum = 0;
  if (!job_.last()) {
    HEADRACE_ASSIGN_OR_RETURN(
        const std::vector<double> partial,
        exchange_->TakeNumbers(v1::MESSAGE_KIND_NORM_PARTIAL, job_.stage() + 1));
    sum = partial[0];
    loss = partial[1];
  }
  HEADRACE_ASSIGN_OR_RETURN(const double with_own, AddSquaredNorms(sum));
  return AgreeAcrossStages(step, with_own, loss);
}

absl::StatusOr<Decision> Update::AgreeAcrossStages(int64_t step, double sum, double loss) {
  Verdict verdict;
  if (job_.first()) {
    verdict = Judge(step, loss, sum);
  } else {
    HEADRACE_RETURN_IF_ERROR(
        exchange_->SendNumbers(v1::MESSAGE_KIND_NORM_PARTIAL, job_.stage() - 1, {sum, loss}));
    HEADRACE_ASSIGN_OR_RETURN(const std::vector<double> decided,
                              exchange_->TakeNumbers(v1::MESSAGE_KIND_DECISION, job_.stage() - 1));
    sum = decided[0];
    loss = decided[1];
    const absl::StatusOr<Verdict> told = VerdictOf(decided[2]);
    if (!told.ok()) {
      return exchange_->Failure(told.status().code(), absl::StrCat("stage ", job_.stage() - 1, ": ",
                                                                   told.status().message()));
    }
    verdict = *told;
  }
  if (!job_.last()) {
    HEADRACE_RETURN_IF_ERROR(exchange_->SendNumbers(v1::MESSAGE_KIND_DECISION, job_.stage() + 1,
                                                    {sum, loss, NumberOf(verdict)}));
  }
  Decision decision{loss, std::sqrt(sum), verdict, ""};
  if (verdict.applied()) {
    spikes_.Add(loss);
  } else {
    decision.reason = Reason(step, loss, decision.gradient_norm);
  }
  return decision;
}

Verdict Update::Judge(int64_t step, double loss, double sum) const {
  const bool good = std::isfinite(loss) && std::isfinite(sum) && !spikes_.IsSpike(loss);
  const v1::NanPolicy policy = job_.recovery.on_nan();
  if (!good && policy == v1::NAN_POLICY_ROLLBACK) return {.fate = Fate::kRollback};
  if (!good && policy != v1::NAN_POLICY_SKIP) return {.fate = Fate::kStop};
  Verdict verdict = wishes_ ? wishes_(step) : Verdict();
  verdict.fate = good ? Fate::kApply : Fate::kSkip;
  return verdict;
}

std::string Update::Reason(int64_t step, double loss, double norm) const {
  if (std::isfinite(loss) && std::isfinite(norm)) return spikes_.Describe(step, loss);
  if (!std::isfinite(loss)) {
    return absl::StrCat("the loss became ", Spell(loss), " in step ", step);
  }
  if (!bad_parameter_.empty()) {
    return absl::StrCat("the gradient of ", bad_parameter_, " became ", Spell(norm), " in step ",
                        step);
  }
  return absl::StrCat("the gradient norm became ", Spell(norm), " in step ", step);
}

absl::Status Update::Apply(int64_t step, const Decision& decision) {
  {
    TimedSpan optimizer(exchange_, v1::SPAN_KIND_OPTIMIZER);
    optimizer_->Step(step, ClipScale(job_.training.clip_norm(), decision.gradient_norm));
  }
  if (borrowed_ != nullptr && tied_ != nullptr) {
    if (borrowed_->weight.data != tied_->weight.data) {
      TimedSpan tie(exchange_, v1::SPAN_KIND_TIE);
      ops_->Copy(tied_->weight.f32(), borrowed_->weight.f32(), tied_->weight.elements());
      borrowed_->Round(ops_);
    }
    return absl::OkStatus();
  }
  if (tied_ != nullptr) {
    // It is not written again before the next step's share of the gradient has come.
    return SendInPlace(v1::MESSAGE_KIND_TIED_WEIGHTS, job_.num_stages() - 1, tied_->weight);
  }
  if (borrowed_ != nullptr) {
    HEADRACE_ASSIGN_OR_RETURN(const Received weight,
                              exchange_->Take(v1::MESSAGE_KIND_TIED_WEIGHTS, 0));
    TimedSpan tie(exchange_, v1::SPAN_KIND_TIE);
    ops_->Copy(weight.tensor.f32(), borrowed_->weight.f32(), borrowed_->weight.elements());
    borrowed_->Round(ops_);
  }
  return absl::OkStatus();
}

}  // namespace headrace
