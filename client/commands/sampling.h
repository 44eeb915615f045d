// Text from trained weights: what `generate` does and `run --prompt` ends with.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/commands/command.h"

namespace headrace {

struct SamplingOptions {
  std::string prompt;
  std::vector<int64_t> tokens;  // instead of a prompt, for jobs whose tokens are not bytes
  double temperature = 1;
  int64_t top_k = 0;
  uint64_t seed = 0;
  int64_t max_tokens = 200;

  bool wanted() const { return !prompt.empty() || !tokens.empty(); }
};

void AddSamplingOptions(CLI::App* app, SamplingOptions* options);

// INVALID_ARGUMENT: no prompt, or one the job's vocabulary or tokenizer cannot express.
absl::Status CheckSampling(const SamplingOptions& options, const v1::JobSpec& spec);

// Prints prompt and continuation on `out` as it comes; in JSON or YAML one object at the end.
absl::Status GenerateText(Coordinator* coordinator, const v1::Job& job,
                          const SamplingOptions& options, absl::Time deadline, Format format,
                          std::ostream* out, const Environment& environment);

}  // namespace headrace
