// Draws tokens from a trained model spread over stages. Each token is one forward pass over the
// last tokens, at most `context` of them:
//
//   stage 0 ──activation──▶ stage 1 ──▶ … ──▶ last stage    draws the token, reports it
//      ◀───────────────────── token ─────────────────────
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/philox.h"
#include "worker/pipeline/stage_parts.h"

namespace headrace {

// Draws from softmax(logits / temperature) over the `top_k` largest logits (0: all; among equal
// ones the lower token first). Temperature 0: the largest. A pure function of its arguments: the
// number comes from the first block of `stream`. Logits must be finite.
int32_t DrawToken(absl::Span<const float> logits, double temperature, int64_t top_k,
                  const RandomStream& stream);

// Runs one stage's part of `job.generate`; `on_token` is called on the last stage with each token.
// Blocks until all tokens are drawn. Owned by the compute thread.
//   CANCELLED         the stage was told to stop
//   FAILED_PRECONDITION  the model's logits are not finite
//   errors of the exchange, where `step` is the index of the token
absl::Status Generate(const StageJob& job, const StageParts& parts,
                      const std::function<void(int32_t)>& on_token);

}  // namespace headrace
