// Keeps this worker known to the coordinator: registers it, renews its lease as often as each
// answer says (where many workers serve nothing, less often), registers again when the coordinator
// has forgotten it or is another process (NOT_FOUND), and says, for as long as it lasts, that the
// coordinator has been gone for longer than a lease.
//
//              ┌──────────── NOT_FOUND ────────────┐
//              ▼                                   │
//   ──▶ registering ── registered ──▶ beating ─────┘
//          │   ▲                       │   ▲
//          └───┴─ no answer for more ──┴───┘
//                 than a lease: away
//
// Owns one thread, which makes all calls and callbacks.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/cancellation.h"
#include "headrace/v1/worker.grpc.pb.h"

namespace headrace {

struct HeartbeaterCallbacks {
  // Before each try to register: fills in what this worker serves and holds. False: not now, it is
  // asked again soon. May be empty.
  std::function<bool(v1::RegisterWorkerRequest* request)> registering;
  // It has registered, with this process of the coordinator. May be empty.
  std::function<void(const std::string& coordinator)> registered;
  // Fills in what this worker serves, and the heartbeat's number.
  std::function<void(v1::HeartbeatRequest* request)> current;
  // What an answered call said of the coordinator's clock, and when it was made and answered on
  // ours. May be empty.
  std::function<void(const v1::ClockReading& reading, int64_t asked_ns, int64_t heard_ns)> clock;
  // The coordinator says that this stage belongs to no living generation.
  std::function<void(const std::string& job_id, int64_t generation)> stop_stage;
  // Slices of a job that are of no use any more. May be empty.
  std::function<void(const v1::SliceLimit& limit)> drop;
  // Nothing was answered for `silence`, more than a lease. Called again after each further try,
  // some twice a second, until there is an answer.
  std::function<void(absl::Duration silence)> away;
  // Registration was refused for good (a bad request, or a living worker of the same name for
  // longer than any lease): the program should end. The thread ends after this.
  std::function<void(const absl::Status& why)> refused;
};

// The last heartbeat, for a process that ends and has nothing more to report: its name is free at
// once. After the Heartbeater is gone.
//   UNAVAILABLE, DEADLINE_EXCEEDED  nobody was told; the lease will run out
//   NOT_FOUND                       nobody knew it
absl::Status SayGoodbye(v1::WorkerRegistryService::StubInterface* stub, const v1::WorkerInfo& self,
                        absl::Time deadline);

class Heartbeater {
 public:
  // A name is taken while the lease of a worker that just died runs out; longer than this, it is
  // another living worker's.
  static constexpr absl::Duration kNameTakenFor = absl::Seconds(5);

  // Starts at once. `stub` must outlive the heartbeater.
  Heartbeater(v1::WorkerRegistryService::StubInterface* stub, v1::WorkerInfo self,
              HeartbeaterCallbacks callbacks);
  ~Heartbeater();  // cancels a call in flight; waits for a callback

 private:
  void Run();
  // True once registered; false: refused, or the object is being destroyed.
  bool Register();
  // Beats until it has to register again (true) or the object is being destroyed (false).
  bool Beat();
  absl::Status RegisterOnce();
  absl::Status BeatOnce();
  // Makes one call that ends by `timeout` or with the object.
  absl::Status Call(absl::Duration timeout,
                    const std::function<grpc::Status(grpc::ClientContext*)>& call);
  // After a try without an answer. `lease`: as the last answer left it.
  void TellAway(absl::Duration lease, const absl::Status& status);
  void TellClock(const v1::ClockReading& reading, int64_t asked_ns);

  v1::WorkerRegistryService::StubInterface* const stub_;
  const v1::WorkerInfo self_;
  const HeartbeaterCallbacks callbacks_;

  // The thread's own.
  absl::Duration heartbeat_ = absl::Milliseconds(500);
  absl::Duration lease_ = absl::Seconds(2);
  absl::Duration pause_;  // until the next heartbeat, as the last answer said; the lease is longer
                          // by what it is above heartbeat_
  absl::Time answered_ = absl::InfiniteFuture();  // last time the coordinator answered; not yet
  bool away_logged_ = false;

  Cancellation cancellation_;
  std::thread thread_;
};

}  // namespace headrace
