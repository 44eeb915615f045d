#include "worker/pipeline/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "common/status.h"

namespace headrace {
namespace {

// The run of one stage over all tokens.
class Run {
 public:
  Run(const StageJob& job, const StageParts& parts, const std::function<void(int32_t)>& on_token)
      : job_(job), parts_(parts), on_token_(on_token) {
    if (job_.first()) {
      tokens_.assign(job_.generate.prompt().begin(), job_.generate.prompt().end());
    }
  }

  absl::Status Token(int64_t index) {
    parts_.exchange->MoveTo({index, -1});
    HEADRACE_RETURN_IF_ERROR(parts_.CheckNotCancelled());
    const int64_t length = GenerateLength(job_, index);
    HEADRACE_RETURN_IF_ERROR(TakeBoundary(length));
    MicroBatch mb;
    mb.shape = {1, length};
    mb.step = index;
    mb.training = false;
    const absl::Status status = job_.last() ? Draw(mb) : PassOn(mb);
    parts_.stash->Release(0);
    return status;
  }

 private:
  absl::Status TakeBoundary(int64_t length) {
    if (job_.first()) {
      HEADRACE_ASSIGN_OR_RETURN(void* ids, parts_.stash->OpenBoundary(0));
      return parts_.tokens->Write(ids, length, [&](int32_t* tokens) {
        std::copy(tokens_.end() - length, tokens_.end(), tokens);
      });
    }
    HEADRACE_ASSIGN_OR_RETURN(
        Received arrived,
        parts_.exchange->Take(v1::MESSAGE_KIND_EVAL_ACTIVATION, job_.stage() - 1));
    parts_.stash->KeepBoundary(0, std::move(arrived.slot));
    return absl::OkStatus();
  }

  // As the layers read it.
  const void* Input(const MicroBatch& mb) {
    return parts_.codec->Input(parts_.stash->boundary(0),
                               mb.shape.tokens() * job_.shape.model.width);
  }

  absl::Status PassOn(const MicroBatch& mb) {
    HEADRACE_ASSIGN_OR_RETURN(
        Outgoing output, parts_.exchange->Prepare(v1::MESSAGE_KIND_EVAL_ACTIVATION,
                                                  {mb.shape.tokens(), job_.shape.model.width}));
    parts_.exchange->Record("forward");
    const Act y = parts_.codec->Output(output.tensor);
    parts_.model->Forward(mb, Input(mb), y, nullptr);
    parts_.codec->Close(y, output.tensor);
    HEADRACE_RETURN_IF_ERROR(parts_.exchange->CheckDevice());
    HEADRACE_RETURN_IF_ERROR(parts_.exchange->Send(job_.stage() + 1, std::move(output)));
    if (!job_.first()) return absl::OkStatus();
    HEADRACE_ASSIGN_OR_RETURN(const int32_t token,
                              parts_.exchange->TakeToken(job_.num_stages() - 1));
    if (token < 0 || token >= job_.shape.model.vocabulary) {
      return parts_.exchange->Failure(absl::StatusCode::kInvalidArgument,
                                      "the last stage sent a token beyond the vocabulary");
    }
    tokens_.push_back(token);
    return absl::OkStatus();
  }

  absl::Status Draw(const MicroBatch& mb) {
    parts_.exchange->Record("draw");
    parts_.model->Logits(mb, Input(mb), mb.shape.length - 1,
                         parts_.tokens->logits());
    HEADRACE_RETURN_IF_ERROR(parts_.exchange->CheckDevice());
    HEADRACE_ASSIGN_OR_RETURN(const std::vector<float>* const logits, parts_.tokens->ReadLogits());
    for (float logit : *logits) {
      if (!std::isfinite(logit)) {
        return parts_.exchange->Failure(absl::StatusCode::kFailedPrecondition,
                                        "the model's logits are not finite");
      }
    }
    const v1::GenerateRequest& request = job_.generate;
    const int32_t token = DrawToken(
        *logits, request.temperature(), request.top_k(),
        MakeStream(request.seed(), RandomPurpose::kGenerate, static_cast<uint32_t>(mb.step), 0, 0));
    on_token_(token);
    if (job_.first()) {
      tokens_.push_back(token);
      return absl::OkStatus();
    }
    return parts_.exchange->SendToken(0, token);
  }

  const StageJob& job_;
  const StageParts& parts_;
  const std::function<void(int32_t)>& on_token_;
  std::vector<int32_t> tokens_;  // first stage: the prompt and what was drawn
};

}  // namespace

int32_t DrawToken(absl::Span<const float> logits, double temperature, int64_t top_k,
                  const RandomStream& stream) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto larger = [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  if (temperature <= 0) return *std::min_element(order.begin(), order.end(), larger);
  const int64_t count = static_cast<int64_t>(logits.size());
  const int64_t kept = top_k <= 0 ? count : std::min(top_k, count);
  std::partial_sort(order.begin(), order.begin() + kept, order.end(), larger);

  std::vector<double> cumulative(kept);
  double sum = 0;
  for (int64_t i = 0; i < kept; ++i) {
    sum += std::exp((static_cast<double>(logits[order[i]]) - logits[order[0]]) / temperature);
    cumulative[i] = sum;
  }
  const double point = UniformFloat(stream.Block(0)[0]) * sum;
  const auto drawn = std::upper_bound(cumulative.begin(), cumulative.end(), point);
  return order[std::min<int64_t>(drawn - cumulative.begin(), kept - 1)];
}

absl::Status Generate(const StageJob& job, const StageParts& parts,
                      const std::function<void(int32_t)>& on_token) {
  Run run(job, parts, on_token);
  for (int64_t index = 0; index < job.generate.max_tokens(); ++index) {
    HEADRACE_RETURN_IF_ERROR(run.Token(index));
  }
  return absl::OkStatus();
}

}  // namespace headrace
