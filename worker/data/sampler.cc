#include "worker/data/sampler.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/philox.h"
#include "common/status.h"

namespace headrace {
namespace {

constexpr double kDefaultValidationSplit = 0.1;

// A whole number below `bound`, for a random (or evenly spread) 64-bit fraction of it.
int64_t Scale(uint64_t fraction, int64_t bound) {
  return static_cast<int64_t>(
      static_cast<unsigned __int128>(fraction) * static_cast<unsigned __int128>(bound) >> 64);
}

absl::Status CheckPart(const char* part, int64_t tokens, int64_t length) {
  if (tokens > length) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the ", part, " part of the data has ", tokens,
                                                 " tokens; one sequence and its next token need ",
                                                 length + 1));
}

void Copy(const TokenFile& tokens, int64_t from, int64_t count, int32_t* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = tokens[from + i];
}

}  // namespace

absl::StatusOr<Sampler> Sampler::Create(const TokenFile* tokens, const v1::DataSpec& data,
                                        int64_t sequence_length, int64_t batch_size,
                                        int64_t vocabulary) {
  const double split =
      data.has_validation_split() ? data.validation_split() : kDefaultValidationSplit;
  if (!(split >= 0 && split < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("validation_split: ", split, "; expected 0 or more, below 1"));
  }
  if (tokens->size() > 0 && tokens->max_token() >= vocabulary) {
    return absl::InvalidArgumentError(absl::StrCat("the data has token ", tokens->max_token(),
                                                   ", the vocabulary ends at ", vocabulary - 1));
  }
  Sampler sampler;
  sampler.tokens_ = tokens;
  sampler.validation_tokens_ =
      static_cast<int64_t>(std::floor(static_cast<double>(tokens->size()) * split));
  sampler.training_tokens_ = tokens->size() - sampler.validation_tokens_;
  sampler.length_ = sequence_length;
  sampler.batch_size_ = batch_size;
  sampler.seed_ = data.seed();
  HEADRACE_RETURN_IF_ERROR(CheckPart("training", sampler.training_tokens_, sequence_length));
  if (split > 0) {
    HEADRACE_RETURN_IF_ERROR(CheckPart("validation", sampler.validation_tokens_, sequence_length));
  }
  return sampler;
}

void Sampler::Training(int64_t step, int64_t first, int64_t count, int32_t* ids,
                       int32_t* targets) const {
  for (int64_t i = 0; i < count; ++i) {
    const RandomStream stream =
        MakeStream(seed_, RandomPurpose::kData, static_cast<uint32_t>(step),
                   static_cast<uint32_t>(first + i), static_cast<uint32_t>(step >> 32));
    const PhiloxBlock random = stream.Block(0);
    const int64_t start = Scale(uint64_t{random[0]} << 32 | random[1], training_tokens_ - length_);
    if (ids != nullptr) Copy(*tokens_, start, length_, ids + i * length_);
    if (targets != nullptr) Copy(*tokens_, start + 1, length_, targets + i * length_);
  }
}

void Sampler::Validation(int64_t batch, int64_t first, int64_t count, int32_t* ids,
                         int32_t* targets) const {
  // Multiples of the golden ratio, modulo 1: however many are taken, they lie evenly.
  constexpr uint64_t kGoldenRatio = 0x9E3779B97F4A7C15;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t place = static_cast<uint64_t>(batch * batch_size_ + first + i) * kGoldenRatio;
    const int64_t start = training_tokens_ + Scale(place, validation_tokens_ - length_);
    if (ids != nullptr) Copy(*tokens_, start, length_, ids + i * length_);
    if (targets != nullptr) Copy(*tokens_, start + 1, length_, targets + i * length_);
  }
}

}  // namespace headrace
