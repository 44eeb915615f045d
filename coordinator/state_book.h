// What of one job's state lies where, and so from which step it can go on. Pure.
//
//   StageSnapshot ──▶ step and generation: a slice a stage ──▶ all in the store ──▶ to be verified
//                        │ held by workers                                               │
//                        ▼                                                               ▼
//             each held by one that lives: "replicas"                       durable: "checkpoint"
//                        └──────────────▶ Latest: the later of both ◀────────────────────┘
//
// A slice is known by its hash, whoever made it: the same layers after the same step have the same
// bytes. What is durable was verified and is in the store's table; what is only held lasts as long
// as its holders, and is forgotten with the coordinator but for what workers say again.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "headrace/v1/job.pb.h"
#include "headrace/v1/worker.pb.h"

namespace headrace {

// Owned and called by one thread.
class StateBook {
 public:
  static constexpr int64_t kKeptLast = 3;      // where the spec says nothing
  static constexpr size_t kMaxSnapshots = 16;  // steps that are on their way, or only held
  static constexpr size_t kMaxHeld = 4096;     // slices on workers
  static constexpr int64_t kMaxSliceBytes = int64_t{1} << 50;

  // State to go on from.
  struct Point {
    int64_t step = 0;
    // In layer order; holder_addresses are those of living workers. Simulated: none.
    std::vector<v1::WeightsSlice> slices;
    std::string source = "the beginning";  // or "replicas", "checkpoint"
  };
  using Living = std::map<std::string, std::string>;  // worker → address

  explicit StateBook(v1::CheckpointSpec spec) : spec_(std::move(spec)) {}

  // The store's rows, damaged ones too. Once, first.
  void Restore(const google::protobuf::RepeatedPtrField<v1::Checkpoint>& checkpoints);
  // Snapshots are of this generation from now on; workers[k] serves stage k. Again after a restart
  // of the coordinator, for the generation that goes on.
  void BeginGeneration(int64_t generation, const v1::Plan& plan,
                       const std::vector<std::string>& workers, bool simulated);

  // INVALID_ARGUMENT: no snapshot that this stage could have made: other layers than its plan's, no
  // hash, no size, or an address outside the job's store.
  absl::Status Check(int64_t stage, const v1::StageSnapshot& snapshot) const;
  // What a stage reports. A checkpoint, once: all its slices are in the store now and are to be
  // verified. One that fails Check, or that says why it failed, changes nothing.
  std::optional<v1::Checkpoint> Add(int64_t stage, const std::string& worker,
                                    const v1::StageSnapshot& snapshot, absl::Time now);
  // Is in the store and in its table. Replaces what there was of this step.
  void Verified(const v1::Checkpoint& checkpoint);
  // Is deleted.
  void Dropped(int64_t step) { durable_.erase(step); }

  // A worker registers: only what it says now, by Held, is on its disk.
  void Forget(const std::string& worker);
  void Held(const std::string& worker, const v1::HeldSlice& slice);

  // This slice cannot be had, or is not what it should be. Checkpoints with it are not gone on from
  // any more; returns those that were sound so far, to be saved.
  std::vector<v1::Checkpoint> Damaged(const std::string& sha256, const std::string& why);
  // What was done in these steps is undone for good (on_nan: rollback): no state after one of them
  // counts, neither what there is nor what is still reported.
  void LeaveOut(const v1::StepRange& steps);

  // The latest state of a step up to `at_most_step` that can be had from the store or from living
  // workers. Step 0: the beginning.
  Point Latest(const Living& living, int64_t at_most_step) const;

  // Durable ones that may be deleted, by the spec's retention: not the last keep_last sound ones,
  // nor those of keep_every. Ascending.
  std::vector<int64_t> Superfluous() const;
  // Of the sound ones. Ascending.
  std::vector<int64_t> DurableSteps() const;
  // Workers may drop slices of earlier steps: there is a later state that outlives any one worker.
  int64_t KeepFrom() const;

 private:
  struct Part {  // one stage's
    bool known = false;
    bool in_store = false;
    v1::WeightsSlice slice;         // without holders
    std::set<std::string> holders;  // simulated ones only: they have no hash to be found by
  };
  struct Snapshot {
    bool simulated = false;
    bool offered = false;  // to be verified
    bool failed = false;   // some stage's part will not get where it should
    std::vector<Part> parts;
  };
  struct Holding {
    int64_t step = 0;
    std::set<std::string> workers;
  };
  using Key = std::pair<int64_t, int64_t>;  // step, generation

  bool LeftOut(int64_t step) const;
  bool Sound(const v1::Checkpoint& checkpoint) const;
  // nullptr: nobody.
  const std::set<std::string>* HoldersOf(const Snapshot& snapshot, const Part& part) const;
  bool HeldByLiving(const Snapshot& snapshot, const Living& living) const;
  // Even if any one worker is lost.
  bool HeldTwice(const Snapshot& snapshot) const;
  v1::WeightsSlice WithHolders(v1::WeightsSlice slice, const Living& living) const;
  void Hold(const std::string& worker, int64_t step, const std::string& sha256);
  int64_t LastDurable() const;
  bool BeingStored(const Key& key, const Snapshot& snapshot) const;
  void Prune();

  v1::CheckpointSpec spec_;
  int64_t generation_ = 0;
  bool simulated_ = false;
  std::vector<v1::StagePlan> stages_;  // of the generation
  std::vector<v1::StepRange> left_out_;
  std::map<int64_t, v1::Checkpoint> durable_;  // by step
  std::map<Key, Snapshot> snapshots_;
  std::map<std::string, Holding> held_;  // by hash
};

}  // namespace headrace
