#include "worker/pipeline/evaluation.h"

#include <utility>

#include "common/status.h"
#include "worker/pipeline/timed_span.h"

namespace headrace {

Evaluation::Evaluation(const StageJob* job, const StageParts& parts) : job_(*job), parts_(parts) {}

bool Evaluation::IsDueAfter(int64_t step) const {
  if (!job_.validates) return false;
  return step % job_.training.eval_every() == 0 || step == job_.training.steps();
}

absl::StatusOr<double> Evaluation::Run(int64_t step) {
  double sum = 0;
  for (int64_t batch = 0; batch < job_.training.eval_batches(); ++batch) {
    for (int m = 0; m < job_.num_micro_batches(); ++m) {
      HEADRACE_ASSIGN_OR_RETURN(const double loss, RunMicroBatch(step, batch, m));
      sum += loss;
    }
  }
  return sum / static_cast<double>(job_.training.eval_batches() * job_.tokens());
}

absl::StatusOr<double> Evaluation::RunMicroBatch(int64_t step, int64_t batch, int m) {
  MicroBatch mb;
  mb.shape = job_.micro_batches[m];
  mb.seed = job_.training.seed();
  mb.step = step;
  mb.micro_batch = batch * job_.num_micro_batches() + m;
  mb.training = false;
  parts_.exchange->MoveTo({step, static_cast<int>(mb.micro_batch)});
  HEADRACE_RETURN_IF_ERROR(parts_.CheckNotCancelled());

  HEADRACE_ASSIGN_OR_RETURN(const void* input, TakeBoundary(batch, m));
  if (job_.last()) {
    HEADRACE_ASSIGN_OR_RETURN(
        mb.targets, parts_.tokens->Targets(mb.shape.tokens(), [&](int32_t* tokens) {
          parts_.sampler->Validation(batch, job_.first_sequence[m], mb.shape.sequences, nullptr,
                                     tokens);
        }));
  }
  Outgoing output;
  if (!job_.last()) {
    HEADRACE_ASSIGN_OR_RETURN(
        output, parts_.exchange->Prepare(v1::MESSAGE_KIND_EVAL_ACTIVATION, job_.BoundaryShape(m)));
  }
  parts_.exchange->Record("evaluate");
  void* kept = nullptr;
  if (!job_.shape.recomputes) {
    HEADRACE_ASSIGN_OR_RETURN(kept, parts_.stash->OpenWorkingSet(m));
  }
  parts_.evaluation_loss->Clear();
  mb.loss = parts_.evaluation_loss->data();
  {
    TimedSpan evaluate(parts_.exchange, v1::SPAN_KIND_EVALUATE);
    const Act y = parts_.codec->Output(output.tensor);
    parts_.model->Forward(
        mb, parts_.codec->Input(input, mb.shape.tokens() * job_.shape.model.width), y, kept);
    parts_.codec->Close(y, output.tensor);
  }
  parts_.stash->Release(m);
  HEADRACE_RETURN_IF_ERROR(parts_.exchange->CheckDevice());
  if (!job_.last()) {
    HEADRACE_RETURN_IF_ERROR(parts_.exchange->Send(job_.stage() + 1, std::move(output)));
  }
  if (!job_.last()) return 0.0;
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<double>* const loss, parts_.evaluation_loss->Read());
  return loss->front();
}

absl::StatusOr<const void*> Evaluation::TakeBoundary(int64_t batch, int m) {
  if (job_.first()) {
    HEADRACE_ASSIGN_OR_RETURN(void* ids, parts_.stash->OpenBoundary(m));
    HEADRACE_RETURN_IF_ERROR(
        parts_.tokens->Write(ids, job_.micro_batches[m].tokens(), [&](int32_t* tokens) {
          parts_.sampler->Validation(batch, job_.first_sequence[m],
                                     job_.micro_batches[m].sequences, tokens, nullptr);
        }));
    return ids;
  }
  HEADRACE_ASSIGN_OR_RETURN(
      Received activation,
      parts_.exchange->Take(v1::MESSAGE_KIND_EVAL_ACTIVATION, job_.stage() - 1));
  parts_.stash->KeepBoundary(m, std::move(activation.slot));
  return parts_.stash->boundary(m);
}

}  // namespace headrace
