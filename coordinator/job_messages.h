// What goes into the job machine and what comes out. Plain data; the driver (job_driver.h) makes
// the events and carries the commands out, scripts in job_machine_test.cc write both as text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/store/job_store.h"
#include "headrace/v1/cluster.pb.h"
#include "headrace/v1/job.pb.h"
#include "headrace/v1/worker.pb.h"

namespace headrace {

// ---- Events: what has happened.

struct WorkerJoined {
  v1::WorkerInfo worker;
  std::optional<v1::StageStanding> standing =
      {};  // what it serves, although nobody told it to just now
  std::vector<v1::HeldSlice> held = {};
};
struct WorkerLost {
  std::string worker;
  std::string instance;
  std::string reason;  // "no heartbeat for 2.0 s"
};
struct WorkerBeat {
  std::string worker;
  std::string instance;
  std::string job_id;  // what it serves; empty: nothing
  uint64_t number = 0;
  bool draining = false;  // it will leave
};
// `request` in these is the driver's number for the caller that waits for a Reply.
struct JobSubmitted {
  int64_t request = 0;
  v1::JobSpec spec;
  v1::Dataset dataset;
  v1::JobOptions options;
  std::optional<StoredJob> from = {};  // begins from a checkpoint of this job
  int64_t from_step = 0;               // of this step; 0: its last good one
};
struct GenerateSubmitted {
  int64_t request = 0;
  v1::GenerateRequest generate;
  v1::Job trained;  // whose weights to use
};
struct CancelRequested {
  int64_t request = 0;
  std::string job_id;
};
// Replied to with the step after which its checkpoint will be.
struct CheckpointRequested {
  int64_t request = 0;
  std::string job_id;
};
struct PauseRequested {
  int64_t request = 0;
  std::string job_id;
};
// Replied to with the step that it goes on from, and what it waits for.
struct ResumeRequested {
  int64_t request = 0;
  std::string job_id;
  StoredJob stored;  // as the store has it, for the machine keeps none that has ended
};
// Replied to with the job that is being moved away, if one is.
struct CordonRequested {
  int64_t request = 0;
  std::string worker;
  bool cordoned = false;  // false: may be given stages again
  bool drain = false;
};
// The caller of a generate request has gone away or waited too long.
struct GenerateAbandoned {
  int64_t request = 0;
  std::string reason;
};
struct StageReported {
  std::string worker;
  std::string instance;
  v1::StageEvent event;
};
enum class CallKind { kAssign, kStart, kStop, kProfile, kControl };
struct CallEnded {
  CallKind kind = CallKind::kAssign;
  std::string worker;
  std::string instance;
  std::string job_id;
  int64_t generation = 0;
  absl::Status status;
  v1::StopStageResponse stop;         // kStop
  v1::ProfileLayersResponse profile;  // kProfile; no generation
};
struct WeightsHashed {
  std::string job_id;
  int64_t generation = 0;
  absl::StatusOr<std::string> sha256;
};
// The answer to a VerifyCheckpoint. A slice that is damaged or not there: the message names it.
struct CheckpointVerified {
  std::string job_id;
  int64_t generation = 0;
  v1::Checkpoint checkpoint;
  absl::Status status;
};
// What the machine wanted saved could not be.
struct StoreFailed {
  absl::Status status;
};
struct TimePassed {};

using Event = std::variant<WorkerJoined, WorkerLost, WorkerBeat, JobSubmitted, GenerateSubmitted,
                           CancelRequested, CheckpointRequested, PauseRequested, ResumeRequested,
                           CordonRequested, GenerateAbandoned, StageReported, CallEnded,
                           WeightsHashed, CheckpointVerified, StoreFailed, TimePassed>;

// ---- Commands: what to do about it, in this order.

struct AssignCall {
  std::string worker;
  std::string instance;
  v1::StageAssignment assignment;
};
struct StartCall {
  std::string worker;
  std::string instance;
  std::string job_id;
  int64_t generation = 0;
};
struct StopCall {
  std::string worker;
  std::string instance;
  std::string job_id;
  int64_t generation = 0;
  std::string reason;
};
// To stage 0's worker: ControlStage.
struct ControlCall {
  std::string worker;
  std::string instance;
  std::string job_id;
  int64_t generation = 0;
  bool checkpoint = false;
  bool leave = false;
};
struct ProfileCall {
  std::string worker;
  std::string instance;
  std::string address;
  v1::ProfileLayersRequest request;
};
// Ends a ProfileCall early. Nothing to do if it has ended.
struct CancelProfile {
  std::string worker;
  std::string instance;
  std::string job_id;
};
// The worker serves this from now on (empty: nothing), whatever it says of itself. One that came
// with a standing stage gets one of both as an answer: go on, or end it.
struct SetServing {
  std::string worker;
  std::string instance;
  std::string job_id;
  int64_t generation = 0;
};
// Verifies the slices and hashes their payloads in order.
struct HashWeights {
  std::string job_id;
  int64_t generation = 0;
  std::vector<v1::WeightsSlice> slices;
};
// Whether every slice is whole, where it is said to lie.
struct VerifyCheckpoint {
  std::string job_id;
  int64_t generation = 0;
  v1::Checkpoint checkpoint;
  std::string store;  // CheckpointSpec.store
};
// With all its slices: together with what comes before and after it, or not at all.
struct SaveCheckpoint {
  std::string job_id;
  v1::Checkpoint checkpoint;
};
struct DropCheckpoints {
  std::string job_id;
  std::vector<int64_t> steps;
};
// These workers need not hold slices of earlier steps any more.
struct DropSlices {
  std::string job_id;
  int64_t before_step = 0;
  std::vector<std::string> workers;
};
// For those who ask about the worker.
struct SetCordoned {
  std::string worker;
  std::string instance;
  bool cordoned = false;
};
struct SaveJob {
  v1::Job job;  // without steps
  v1::JobOptions options;
};
struct SaveStep {
  std::string job_id;
  v1::StepResult step;
};
struct SaveEvent {
  std::string job_id;
  v1::JobEvent event;  // the store numbers it
};
struct SaveHashes {
  std::string job_id;
  v1::TensorHashes hashes;
};
struct SaveLayerCost {
  StoredLayerCost cost;
};
// Kept in memory until the job ends, and then with it.
struct KeepTrace {
  std::string job_id;
  int64_t stage = 0;
  v1::StageTrace trace;
};
// Answers an event with a request.
struct Reply {
  int64_t request = 0;
  absl::Status status = absl::OkStatus();
  std::string job_id = {};
  std::string message = {};
  int64_t step = 0;
};
struct EmitToken {
  int64_t request = 0;
  int64_t token = 0;
};
struct EndGenerate {
  int64_t request = 0;
  absl::Status status;
};

using Command =
    std::variant<AssignCall, StartCall, StopCall, ControlCall, ProfileCall, CancelProfile,
                 SetServing, SetCordoned, HashWeights, VerifyCheckpoint, SaveCheckpoint,
                 DropCheckpoints, DropSlices, SaveJob, SaveStep, SaveEvent, SaveHashes,
                 SaveLayerCost, KeepTrace, Reply, EmitToken, EndGenerate>;

using Commands = std::vector<Command>;

// "RUNNING"
std::string ShortName(v1::JobState state);

}  // namespace headrace
