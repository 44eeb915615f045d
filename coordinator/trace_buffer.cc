#include "coordinator/trace_buffer.h"

#include <algorithm>
#include <utility>

namespace headrace {

void TraceBuffer::Add(const std::string& job_id, int64_t stage, v1::StageTrace trace) {
  if (trace.begin_ns().empty()) return;
  trace.set_stage(stage);
  absl::MutexLock lock(&mu_);
  Job& job = jobs_[job_id];
  trace.set_number(++job.last_number);
  Chunk chunk{trace.last_step(), trace.SerializeAsString()};
  const int64_t share = std::min(job_bytes_, all_bytes_ / static_cast<int64_t>(jobs_.size()));
  job.bytes += static_cast<int64_t>(chunk.bytes.size());
  job.chunks.push_back(std::move(chunk));
  while (job.bytes > share) {
    const Chunk& oldest = job.chunks.front();
    job.dropped_step = std::max(job.dropped_step, oldest.last_step);
    job.bytes -= static_cast<int64_t>(oldest.bytes.size());
    job.chunks.pop_front();
  }
}

std::optional<v1::JobTrace> TraceBuffer::Find(const std::string& job_id) const {
  v1::JobTrace trace;
  absl::MutexLock lock(&mu_);
  const auto it = jobs_.find(job_id);
  if (it == jobs_.end()) return std::nullopt;
  trace.set_dropped_step(it->second.dropped_step);
  for (const Chunk& chunk : it->second.chunks) {
    // Bytes of our own making: they parse.
    trace.add_traces()->ParseFromString(chunk.bytes);
  }
  return trace;
}

void TraceBuffer::Forget(const std::string& job_id) {
  absl::MutexLock lock(&mu_);
  jobs_.erase(job_id);
}

}  // namespace headrace
