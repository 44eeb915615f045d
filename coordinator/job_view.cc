#include "coordinator/job_view.h"

#include <cstddef>

namespace headrace {
namespace {

constexpr size_t kMaxCheckpointBytes = size_t{2} << 20;

}  // namespace

void TrimForReader(v1::Job* job) {
  size_t bytes = 0;
  for (const v1::Checkpoint& checkpoint : job->checkpoints()) bytes += checkpoint.ByteSizeLong();
  if (bytes <= kMaxCheckpointBytes) return;
  bool last = true;
  for (auto it = job->mutable_checkpoints()->rbegin(); it != job->mutable_checkpoints()->rend();
       ++it) {
    if (!last || !it->damaged().empty()) {
      it->clear_slices();
    } else {
      last = false;
    }
  }
}

void TrimForWatcher(v1::Job* job) {
  job->clear_flight_records();
  for (v1::Checkpoint& checkpoint : *job->mutable_checkpoints()) checkpoint.clear_slices();
}

}  // namespace headrace
