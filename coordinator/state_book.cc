#include "coordinator/state_book.h"

#include <algorithm>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/sha256.h"

namespace headrace {
namespace {

// The folder's own files only: what lies there is read, hashed and deleted.
bool LiesIn(const std::string& uri, const std::string& store) {
  if (store.empty()) return uri.empty();
  const std::string folder = absl::EndsWith(store, "/") ? store : store + "/";
  return absl::StartsWith(uri, folder) && uri.size() > folder.size() &&
         !absl::StrContains(uri, "/../") && !absl::EndsWith(uri, "/..");
}

}  // namespace

void StateBook::Restore(const google::protobuf::RepeatedPtrField<v1::Checkpoint>& checkpoints) {
  for (const v1::Checkpoint& checkpoint : checkpoints) durable_[checkpoint.step()] = checkpoint;
}

void StateBook::BeginGeneration(int64_t generation, const v1::Plan& plan,
                                const std::vector<std::string>& workers, bool simulated) {
  generation_ = generation;
  simulated_ = simulated;
  stages_.assign(plan.stage().begin(), plan.stage().end());
  for (size_t k = 0; k < stages_.size() && k < workers.size(); ++k) {
    stages_[k].set_worker(workers[k]);
  }
}

absl::Status StateBook::Check(int64_t stage, const v1::StageSnapshot& snapshot) const {
  if (stage < 0 || stage >= static_cast<int64_t>(stages_.size()) || snapshot.step() < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a snapshot of stage ", stage, " after step ", snapshot.step()));
  }
  if (simulated_) {
    if (!snapshot.has_slice()) return absl::OkStatus();
    return absl::InvalidArgumentError("a snapshot has a slice, but the job is simulated");
  }
  const v1::WeightsSlice& slice = snapshot.slice();
  const v1::StagePlan& plan = stages_[stage];
  if (slice.first_layer() != plan.first_layer() || slice.end_layer() != plan.end_layer()) {
    return absl::InvalidArgumentError(
        absl::StrCat("its snapshot is of layers ", slice.first_layer(), " to ", slice.end_layer(),
                     ", its plan says ", plan.first_layer(), " to ", plan.end_layer()));
  }
  if (!IsSha256(slice.sha256()) || slice.size_bytes() < 1 || slice.size_bytes() > kMaxSliceBytes) {
    return absl::InvalidArgumentError("its snapshot has no hash or no size");
  }
  if (snapshot.in_store() && !LiesIn(slice.uri(), spec_.store())) {
    return absl::InvalidArgumentError(
        absl::StrCat("its snapshot lies at \"", slice.uri(), "\", the job's store is ",
                     spec_.store().empty() ? "the coordinator's" : spec_.store()));
  }
  return absl::OkStatus();
}

std::optional<v1::Checkpoint> StateBook::Add(int64_t stage, const std::string& worker,
                                             const v1::StageSnapshot& snapshot, absl::Time now) {
  if (!snapshot.failed().empty()) {
    const auto it = snapshots_.find({snapshot.step(), generation_});
    if (it != snapshots_.end()) it->second.failed = true;
    return std::nullopt;
  }
  if (!Check(stage, snapshot).ok() || LeftOut(snapshot.step())) return std::nullopt;
  const std::string& holder = snapshot.holder().empty() ? worker : snapshot.holder();
  if (!snapshot.in_store() && !simulated_) {
    Hold(holder, snapshot.step(), snapshot.slice().sha256());
  }
  if (snapshot.step() <= LastDurable()) return std::nullopt;
  Snapshot& whole = snapshots_[{snapshot.step(), generation_}];
  whole.simulated = simulated_;
  whole.parts.resize(stages_.size());
  Part& part = whole.parts[stage];
  part.known = true;
  if (part.slice.sha256() != snapshot.slice().sha256()) part.in_store = false;
  const std::string uri = part.in_store ? part.slice.uri() : "";
  part.slice = snapshot.slice();
  part.slice.clear_holder_addresses();
  if (!snapshot.in_store()) {
    part.slice.set_uri(uri);
    if (simulated_) part.holders.insert(holder);
  }
  part.in_store |= snapshot.in_store();
  const bool complete = std::all_of(whole.parts.begin(), whole.parts.end(),
                                    [](const Part& each) { return each.in_store; });
  std::optional<v1::Checkpoint> checkpoint;
  if (complete && !whole.offered) {
    whole.offered = true;
    checkpoint.emplace();
    checkpoint->set_step(snapshot.step());
    checkpoint->set_generation(generation_);
    checkpoint->set_unix_seconds(absl::ToDoubleSeconds(now - absl::UnixEpoch()));
    int64_t bytes = 0;
    for (const Part& each : whole.parts) {
      if (simulated_) continue;
      *checkpoint->add_slices() = each.slice;
      bytes += each.slice.size_bytes();
    }
    checkpoint->set_size_bytes(bytes);
  }
  Prune();
  return checkpoint;
}

void StateBook::Verified(const v1::Checkpoint& checkpoint) {
  durable_[checkpoint.step()] = checkpoint;
  Prune();
}

void StateBook::Forget(const std::string& worker) {
  for (auto& [sha256, holding] : held_) holding.workers.erase(worker);
  std::erase_if(held_, [](const auto& entry) { return entry.second.workers.empty(); });
  for (auto& [key, snapshot] : snapshots_) {
    for (Part& part : snapshot.parts) part.holders.erase(worker);
  }
}

void StateBook::Held(const std::string& worker, const v1::HeldSlice& slice) {
  if (IsSha256(slice.sha256())) Hold(worker, slice.step(), slice.sha256());
}

void StateBook::Hold(const std::string& worker, int64_t step, const std::string& sha256) {
  const auto it = held_.find(sha256);
  if (it == held_.end() && held_.size() >= kMaxHeld) return;
  Holding& holding = held_[sha256];
  holding.step = step;
  holding.workers.insert(worker);
}

std::vector<v1::Checkpoint> StateBook::Damaged(const std::string& sha256, const std::string& why) {
  std::vector<v1::Checkpoint> changed;
  for (auto& [step, checkpoint] : durable_) {
    for (const v1::WeightsSlice& slice : checkpoint.slices()) {
      if (slice.sha256() != sha256 || !checkpoint.damaged().empty()) continue;
      checkpoint.set_damaged(
          absl::StrCat("layers ", slice.first_layer(), " to ", slice.end_layer(), ": ", why));
      changed.push_back(checkpoint);
    }
  }
  held_.erase(sha256);
  return changed;
}

void StateBook::LeaveOut(const v1::StepRange& steps) {
  left_out_.push_back(steps);
  std::erase_if(snapshots_, [this](const auto& entry) { return LeftOut(entry.first.first); });
}

bool StateBook::LeftOut(int64_t step) const {
  return std::any_of(left_out_.begin(), left_out_.end(), [&](const v1::StepRange& range) {
    return range.first() <= step && step <= range.last();
  });
}

bool StateBook::Sound(const v1::Checkpoint& checkpoint) const {
  return checkpoint.damaged().empty() && !LeftOut(checkpoint.step());
}

const std::set<std::string>* StateBook::HoldersOf(const Snapshot& snapshot,
                                                  const Part& part) const {
  if (!part.known) return nullptr;
  if (snapshot.simulated) return &part.holders;
  const auto it = held_.find(part.slice.sha256());
  return it != held_.end() ? &it->second.workers : nullptr;
}

bool StateBook::HeldByLiving(const Snapshot& snapshot, const Living& living) const {
  return std::all_of(snapshot.parts.begin(), snapshot.parts.end(), [&](const Part& part) {
    const std::set<std::string>* holders = HoldersOf(snapshot, part);
    return holders != nullptr &&
           std::any_of(holders->begin(), holders->end(),
                       [&](const std::string& worker) { return living.contains(worker); });
  });
}

bool StateBook::HeldTwice(const Snapshot& snapshot) const {
  return std::all_of(snapshot.parts.begin(), snapshot.parts.end(), [&](const Part& part) {
    const std::set<std::string>* holders = HoldersOf(snapshot, part);
    return holders != nullptr && holders->size() > 1;
  });
}

v1::WeightsSlice StateBook::WithHolders(v1::WeightsSlice slice, const Living& living) const {
  slice.clear_holder_addresses();
  const auto it = held_.find(slice.sha256());
  if (it == held_.end()) return slice;
  for (const std::string& worker : it->second.workers) {
    const auto address = living.find(worker);
    if (address != living.end()) slice.add_holder_addresses(address->second);
  }
  return slice;
}

StateBook::Point StateBook::Latest(const Living& living, int64_t at_most_step) const {
  Point point;
  for (const auto& [step, checkpoint] : durable_) {
    if (step > at_most_step || !Sound(checkpoint)) continue;
    point = Point{step, {}, "checkpoint"};
    for (const v1::WeightsSlice& slice : checkpoint.slices()) {
      point.slices.push_back(WithHolders(slice, living));
    }
  }
  for (const auto& [key, snapshot] : snapshots_) {
    if (key.first > at_most_step || key.first <= point.step) continue;
    if (!HeldByLiving(snapshot, living)) continue;
    point = Point{key.first, {}, "replicas"};
    for (const Part& part : snapshot.parts) {
      if (!snapshot.simulated) point.slices.push_back(WithHolders(part.slice, living));
    }
  }
  return point;
}

std::vector<int64_t> StateBook::Superfluous() const {
  const int64_t keep_last =
      spec_.has_keep_last() ? std::max<int64_t>(1, spec_.keep_last()) : kKeptLast;
  std::vector<int64_t> steps;
  int64_t newer = 0;  // sound ones
  for (auto it = durable_.rbegin(); it != durable_.rend(); ++it) {
    const auto& [step, checkpoint] = *it;
    const bool sound = Sound(checkpoint);
    // A damaged one is shown for as long as if it were sound.
    const bool recent = newer < keep_last && !LeftOut(step);
    const bool for_good = sound && spec_.keep_every() > 0 && step % spec_.keep_every() == 0;
    if (!recent && !for_good) steps.push_back(step);
    newer += sound ? 1 : 0;
  }
  std::reverse(steps.begin(), steps.end());
  return steps;
}

std::vector<int64_t> StateBook::DurableSteps() const {
  std::vector<int64_t> steps;
  for (const auto& [step, checkpoint] : durable_) {
    if (Sound(checkpoint)) steps.push_back(step);
  }
  return steps;
}

int64_t StateBook::LastDurable() const {
  int64_t last = 0;
  for (const auto& [step, checkpoint] : durable_) {
    if (Sound(checkpoint)) last = std::max(last, step);
  }
  return last;
}

// Its files are still being read.
bool StateBook::BeingStored(const Key& key, const Snapshot& snapshot) const {
  const auto& parts = snapshot.parts;
  return key.second == generation_ && key.first > LastDurable() && !snapshot.failed &&
         std::any_of(parts.begin(), parts.end(), [](const Part& part) { return part.in_store; });
}

int64_t StateBook::KeepFrom() const {
  int64_t step = LastDurable();
  for (const auto& [key, snapshot] : snapshots_) {
    if (HeldTwice(snapshot)) step = std::max(step, key.first);
  }
  for (const auto& [key, snapshot] : snapshots_) {
    if (BeingStored(key, snapshot)) step = std::min(step, key.first);
  }
  return step;
}

void StateBook::Prune() {
  const int64_t keep_from = KeepFrom();
  const int64_t durable = LastDurable();
  std::erase_if(snapshots_, [&](const auto& entry) {
    return entry.first.first < keep_from || entry.first.first <= durable;
  });
  while (snapshots_.size() > kMaxSnapshots) snapshots_.erase(snapshots_.begin());
  std::erase_if(held_, [&](const auto& entry) { return entry.second.step < keep_from; });
}

}  // namespace headrace
