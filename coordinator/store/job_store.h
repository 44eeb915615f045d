// Jobs on disk: one SQLite file. What is written here survives the coordinator; what a worker or a
// client was told was written here first.
//
//   jobs            id, name, state, last step, Job message (without what the other tables hold)
//   plans           the plan of each generation of a job
//   steps           one StepResult a row
//   events          one JobEvent a row, numbered from 1 within the job
//   tensor_hashes   one TensorHashes a row, numbered from 1 within the job
//   flight_records  what each stage last did, kept when a job fails
//   layer_costs     what layers took on devices, the last ones measured
//   traces          what the stages did in a job's last steps, of the last jobs that ended
//   checkpoints     the manifest of each: a row is there only while all its slices are
//   uses            which blob or file is whose data, weights or slice, so what may be deleted
//   doomed          blobs and files that lost their last use, until they are deleted: rows go first
//
// PRAGMA user_version is the schema's version; an older one is brought up as the file is opened.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/store/database.h"
#include "headrace/v1/cluster.pb.h"
#include "headrace/v1/job.pb.h"
#include "headrace/v1/worker.pb.h"
#include "plan/job_state.h"

namespace headrace {

// A job as the store keeps it, without events, hashes and (but where said so) steps.
struct StoredJob {
  v1::Job job;
  v1::JobOptions options;
};

// What one layer took on one kind of device, as it was measured there.
struct StoredLayerCost {
  std::string device;  // DeviceKey (coordinator/cost_table.h)
  std::string layer;   // DistinctLayer::signature (plan/layer_cost.h)
  v1::LayerSeconds seconds;
};

struct StoredHashes {
  int64_t id = 0;
  v1::TensorHashes hashes;
};

// Thread-safe. Writes go through Begin/Commit of one thread, the job driver's, but for
// ForgetDoomed, which may come from any, alone or within what that thread has begun. Readers have a
// connection of their own, so they never wait for a commit.
class JobStore {
 public:
  static constexpr int kKeptLayerCosts = 10000;
  static constexpr int kKeptTraces = 32;
  static constexpr int64_t kLastSteps = int64_t{1} << 16;  // LoadToGoOn

  // Errors as Database::Open, and FAILED_PRECONDITION for a file of a newer version.
  static absl::StatusOr<std::unique_ptr<JobStore>> Open(const std::string& path);

  // Writing. All writes between Begin and Commit become durable together, or not at all.
  absl::Status Begin();
  absl::Status Commit();
  void Rollback();
  // Inserts or replaces by job.id(), which is "j<number>". Checkpoints have a table of their own:
  // job.checkpoints() is not looked at.
  absl::Status SaveJob(const v1::Job& job, const v1::JobOptions& options);
  absl::Status SaveStep(const std::string& job_id, const v1::StepResult& step);
  // Sets event->id.
  absl::Status SaveEvent(const std::string& job_id, v1::JobEvent* event);
  // Returns the row's number within the job.
  absl::StatusOr<int64_t> SaveHashes(const std::string& job_id, const v1::TensorHashes& hashes);
  // Replaces what was measured before; drops the oldest beyond kKeptLayerCosts.
  absl::Status SaveLayerCost(const StoredLayerCost& cost);
  // Drops the oldest one beyond kKeptTraces.
  absl::Status SaveTrace(const std::string& job_id, const v1::JobTrace& trace);
  // Inserts or replaces by step. What only the replaced one used is doomed.
  absl::Status SaveCheckpoint(const std::string& job_id, const v1::Checkpoint& checkpoint);
  // What only these used is doomed. Steps without a checkpoint are nothing to drop.
  absl::Status DropCheckpoints(const std::string& job_id, const std::vector<int64_t>& steps);
  // It is deleted, or used again.
  absl::Status ForgetDoomed(const std::string& name);

  // Reading.
  //   NOT_FOUND  no job has this id or name; a name means its latest job
  absl::StatusOr<std::string> FindJob(const std::string& id_or_name);
  // With plan, flight records and checkpoints, without steps.
  absl::StatusOr<StoredJob> LoadJob(const std::string& job_id);
  // And with its last kLastSteps steps, without their stage_seconds: what is done again must be
  // equal.
  absl::StatusOr<StoredJob> LoadToGoOn(const std::string& job_id);
  // Newest first, without steps, plans, flight records and checkpoints.
  absl::StatusOr<std::vector<v1::Job>> ListJobs();
  // Jobs that have not ended, oldest first, as LoadToGoOn.
  absl::StatusOr<std::vector<StoredJob>> LoadLiving();
  absl::StatusOr<int64_t> LastJobNumber();
  // At most `limit` (0: all), ascending.
  absl::StatusOr<std::vector<v1::StepResult>> LoadSteps(const std::string& job_id,
                                                        int64_t after_step, int64_t limit);
  absl::StatusOr<std::vector<v1::JobEvent>> LoadEvents(const std::string& job_id,
                                                       int64_t after_event, int64_t limit);
  absl::StatusOr<std::vector<StoredHashes>> LoadHashes(const std::string& job_id,
                                                       int64_t after_step, int64_t after_id,
                                                       int64_t limit);
  // In the order they were measured.
  absl::StatusOr<std::vector<StoredLayerCost>> LoadLayerCosts();
  // Empty: none is kept.
  absl::StatusOr<v1::JobTrace> LoadTrace(const std::string& job_id);
  // A name is a blob's hash, or the URI of a file in a shared folder. Committed rows only.
  absl::StatusOr<std::vector<std::string>> LoadDoomed();
  absl::StatusOr<bool> IsUsed(const std::string& name);

 private:
  JobStore() = default;
  absl::Status Migrate() ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_);
  absl::Status NoteUsesOfOldJobs() ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_);
  absl::Status SavePlan(int64_t number, const v1::Job& job)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_);
  absl::Status SaveFlightRecords(int64_t number, const v1::Job& job)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_);
  absl::Status SaveUsesOfJob(int64_t number, const v1::Job& job)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_);
  absl::Status AddUse(const std::string& name, int64_t number, int64_t step)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_);
  // Row and uses of one checkpoint, if there is one; what it used is doomed unless used elsewhere.
  absl::Status RemoveCheckpoint(int64_t number, int64_t step)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_);
  absl::StatusOr<StoredJob> LoadWhole(int64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(read_mu_);
  absl::Status LoadCheckpoints(int64_t number, v1::Job* job)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(read_mu_);
  absl::Status LoadLastSteps(int64_t number, StoredJob* stored)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(read_mu_);

  absl::Mutex write_mu_;
  absl::Mutex read_mu_;
  std::unique_ptr<Database> writer_ ABSL_GUARDED_BY(write_mu_);
  std::unique_ptr<Database> reader_ ABSL_GUARDED_BY(read_mu_);
};

// "j12" → 12. INVALID_ARGUMENT for anything else.
absl::StatusOr<int64_t> JobNumber(const std::string& job_id);

}  // namespace headrace
