// The tokens of one generate request, on their way from the driver to the RPC that waits for them.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace headrace {

// Thread-safe. Its size is bounded by the request's max_tokens.
class GenerateStream {
 public:
  explicit GenerateStream(int64_t request) : request_(request) {}
  int64_t request() const { return request_; }

  void Put(int64_t token);
  // What was put before still comes out. The first status counts.
  void End(const absl::Status& status);

  // The next token; nullopt: ended well. DEADLINE_EXCEEDED: none came; otherwise what End was
  // given.
  absl::StatusOr<std::optional<int64_t>> Take(absl::Time deadline);

 private:
  const int64_t request_;
  absl::Mutex mu_;
  std::deque<int64_t> tokens_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);
};

}  // namespace headrace
