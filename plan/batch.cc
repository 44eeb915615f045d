#include "plan/batch.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace headrace {

absl::StatusOr<std::vector<int64_t>> SplitBatch(int64_t batch_size, int64_t micro_batches) {
  if (micro_batches < 1 || micro_batches > batch_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "micro_batches is ", micro_batches, "; expected 1 to batch_size, which is ", batch_size));
  }
  std::vector<int64_t> sizes(micro_batches, batch_size / micro_batches);
  for (int64_t m = 0; m < batch_size % micro_batches; ++m) ++sizes[m];
  return sizes;
}

}  // namespace headrace
