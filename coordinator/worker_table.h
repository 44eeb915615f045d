// The job machine's view of the workers: who is there and what each may serve. Pure.
//
//              Join                  Serve
//   (absent) ────────▶ kFree ─────────────────▶ kServing
//                        ▲                         │
//                        │ the stage is gone       │
//                        ├─────────────────────────┤
//                        │                         │ still ending, or stop not answered, or
//                        │ a later heartbeat       ▼ kFree and a heartbeat says "serves"
//                        └──────────────────── kDraining      Lose: from any of them, (absent)
//                          says "serves nothing"
//
// A slot is closed while its worker is cordoned or says that it will leave: nothing new is placed
// on it, what it serves goes on until someone ends it.
//
// kFree ── Measure ──▶ kMeasuring ── Measured ──▶ kFree, or kDraining: layers are timed there
// (profiling.h).
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/job_messages.h"
#include "headrace/v1/cluster.pb.h"

namespace headrace {

struct WorkerSlot {
  enum class State { kFree, kServing, kDraining, kMeasuring };

  v1::WorkerInfo info;
  State state = State::kFree;
  std::string job_id;  // kServing
  int64_t generation = 0;
  uint64_t last_sequence = 0;  // of its reports
  uint64_t last_beat = 0;
  // Heartbeats up to this one may have been written before the worker's last stage was assigned or
  // stopped: they tell nothing of what it serves now.
  uint64_t stale_beat = 0;
  // kServing, but its heartbeats have said otherwise since then.
  absl::Time idle_since = absl::InfiniteFuture();
  bool leaving = false;  // it has said so
  // Since its last heartbeat it has left a StopCall without an answer, or refused it: it is no use
  // to count on it.
  bool silent = false, refuses = false;
};

class WorkerTable {
 public:
  // A worker that says it still serves something, or that was lost and is back (it was stopped, or
  // cut off), starts as kDraining: its heartbeats tell when it is free.
  WorkerSlot* Join(const v1::WorkerInfo& info, bool standing);
  void Lose(const std::string& name);

  // nullptr: no such worker, or another instance has its name now.
  WorkerSlot* Find(const std::string& name, const std::string& instance);
  // The living worker of this name, whichever instance.
  WorkerSlot* Find(const std::string& name);

  // In order of names. Free ones are open.
  std::vector<v1::WorkerInfo> Free() const;
  std::vector<v1::WorkerInfo> Open() const;  // and do not refuse
  std::vector<v1::WorkerInfo> Answering() const;  // not silent
  std::vector<v1::WorkerInfo> Living() const;

  bool Closed(const WorkerSlot& slot) const {
    return slot.leaving || cordoned_.contains(slot.info.name());
  }
  // By name: a worker that comes back under it is cordoned still.
  void Cordon(const std::string& name, bool cordoned);

  void Serve(WorkerSlot* slot, const std::string& job_id, int64_t generation, Commands* out);
  // After the StopCall `call`: answered or not.
  void Release(WorkerSlot* slot, const CallEnded& call, Commands* out);
  void Measure(WorkerSlot* slot) { slot->state = WorkerSlot::State::kMeasuring; }
  // kFree, whatever came of it: a worker ends a measurement before it prepares a stage. Only one
  // that did not answer must show first that it is alive.
  void Measured(WorkerSlot* slot, bool answered);
  // What a heartbeat said. True: a worker became free by it.
  bool Beat(WorkerSlot* slot, const WorkerBeat& beat, absl::Time now);

 private:
  std::map<std::string, WorkerSlot> slots_;
  std::map<std::string, std::string> lost_;  // name → the instance last lost
  std::set<std::string> cordoned_;           // names
};

}  // namespace headrace
