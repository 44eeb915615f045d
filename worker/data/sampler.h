// Which sequences each step draws: a pure function of (seed, step, sequence), so that any stage, at any
// K, after any restart, reads the same tokens. The first tokens train, the last
// `validation_split` of them validate.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/token_file.h"
#include "headrace/v1/job.pb.h"

namespace headrace {

class Sampler {
 public:
  // `tokens` must outlive the sampler.
  //   INVALID_ARGUMENT  either part is shorter than one sequence and its next token (says how many
  //                     tokens it has and needs; a split of 0 needs no validation part); a token is
  //                     ≥ vocabulary
  static absl::StatusOr<Sampler> Create(const TokenFile* tokens, const v1::DataSpec& data,
                                        int64_t sequence_length, int64_t batch_size,
                                        int64_t vocabulary);

  // Sequences [first, first + count) of mini-batch `step`: ids and targets are [count, length] each;
  // targets are ids shifted by one token. Either may be null. Any thread.
  void Training(int64_t step, int64_t first, int64_t count, int32_t* ids, int32_t* targets) const;
  // Likewise of validation mini-batch `batch`: fixed places, spread evenly over the validation part.
  void Validation(int64_t batch, int64_t first, int64_t count, int32_t* ids, int32_t* targets) const;

  bool has_validation() const { return validation_tokens_ > length_; }

 private:
  Sampler() = default;
  const TokenFile* tokens_ = nullptr;
  int64_t training_tokens_ = 0, validation_tokens_ = 0, length_ = 0, batch_size_ = 0;
  uint64_t seed_ = 0;
};

}  // namespace headrace
