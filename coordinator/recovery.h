// What a job that broke does next: goes on in a new generation, or fails for good. Pure.
//
// It goes on
//   after a lost worker: always, but waits longer each time that it gets nowhere
//   for a slice that cannot be had: from the state before it
//   after a worker's own fault: avoiding that worker while others suffice; unless the generation
//     before had the same at the same step
//   after an accusation, or a fault of the coordinator's own
// and not after the third generation in a row that got nowhere by one of the last two.
//
// To get somewhere is to finish a step that had not been finished before.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "coordinator/blame.h"
#include "headrace/v1/job.pb.h"

namespace headrace {

// How a generation broke.
struct Breakdown {
  Root root;
  bool bad_slice = false;  // its root: part of the state that it was to go on from
  bool got_somewhere = false;
  int64_t step = 0;  // of the job, last finished
};

// Of one job, from its submission or resumption on.
class Recovery {
 public:
  static constexpr int kFruitless = 3;  // generations in a row
  static constexpr absl::Duration kLongestPause = absl::Seconds(60);
  static constexpr int kKept = 16;  // v1::Recovery of a job

  explicit Recovery(v1::Switch restart) : restart_(restart != v1::SWITCH_OFF) {}

  bool restarts() const { return restart_; }
  // Empty: the job goes on. Else what it fails with.
  std::string Judge(const Breakdown& breakdown);
  // After a generation that only lost workers: before the next is placed. 0 for the first three.
  absl::Duration Pause() const;
  // The worker's process is another one now.
  void Forgive(const std::string& worker) { avoided_.erase(worker); }
  // Workers that had faults of their own.
  const std::set<std::string>& avoided() const { return avoided_; }

 private:
  bool restart_;
  std::set<std::string> avoided_;
  int fruitless_faults_ = 0;
  int fruitless_losses_ = 0;
  std::string last_own_;  // of the generation before: its fault and step; empty: it had none
};

}  // namespace headrace
