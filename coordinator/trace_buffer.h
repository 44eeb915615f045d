// What the stages of running jobs did lately: for each job the chunks its stages reported, the
// oldest dropped as new ones come, in a bounded number of bytes. When a job ends, the driver moves
// its trace to the store. Thread-safe; never blocks.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "headrace/v1/cluster.pb.h"

namespace headrace {

class TraceBuffer {
 public:
  // A span takes some 16 bytes: half a million of them for one job.
  static constexpr int64_t kJobBytes = int64_t{8} << 20;
  static constexpr int64_t kAllBytes = int64_t{256} << 20;

  // Of a job, and of all running jobs together, which have equal shares.
  explicit TraceBuffer(int64_t job_bytes = kJobBytes, int64_t all_bytes = kAllBytes)
      : job_bytes_(job_bytes), all_bytes_(all_bytes) {}

  // Numbers the chunk. One without spans is ignored, and so is one larger than the job's share.
  void Add(const std::string& job_id, int64_t stage, v1::StageTrace trace);
  // What is kept of the job; nothing: nobody has reported any.
  std::optional<v1::JobTrace> Find(const std::string& job_id) const;
  void Forget(const std::string& job_id);

 private:
  struct Chunk {
    int64_t last_step = 0;
    std::string bytes;  // a StageTrace
  };
  struct Job {
    std::deque<Chunk> chunks;
    int64_t bytes = 0;
    int64_t last_number = 0;
    int64_t dropped_step = 0;
  };

  const int64_t job_bytes_, all_bytes_;
  mutable absl::Mutex mu_;
  std::map<std::string, Job> jobs_ ABSL_GUARDED_BY(mu_);
};

}  // namespace headrace
