// What one stage has to do, checked and complete: worker/assignment.h makes it from what the
// coordinator sent. Plain data, const once made.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "headrace/v1/cluster.pb.h"
#include "headrace/v1/job.pb.h"
#include "headrace/v1/worker.pb.h"
#include "plan/action.h"
#include "plan/stage_memory.h"
#include "worker/backend/tensor.h"

namespace headrace {

struct StageJob {
  std::string job_id;
  int64_t generation = 0;
  std::vector<v1::Peer> peers;  // peers[k] serves stage k; own one included

  StageShape shape;  // model, layers, stage, number of stages, credits
  v1::TrainingSpec training;
  v1::DataSpec data;
  v1::Dataset dataset;
  std::vector<Action> actions;
  std::vector<MicroBatchShape> micro_batches;
  std::vector<int64_t> first_sequence;  // of each micro-batch in its mini-batch
  bool validates = false;               // there is a validation part, and evaluations are asked for

  std::vector<v1::WeightsSlice> weights;  // initial; none: from the seed
  bool generates = false;                 // run `generate` instead of training
  v1::GenerateRequest generate;

  v1::Transport transport = v1::TRANSPORT_AUTO;
  absl::Duration wait_timeout = absl::Seconds(60);  // of one wait for a peer

  // Training goes on from the state after this step, which `weights` then has; 0: it begins.
  int64_t start_step = 0;
  std::vector<v1::StepRange> skipped;  // left out
  std::vector<double> recent_losses;   // of the last steps applied up to start_step
  v1::CheckpointSpec checkpoint;
  v1::RecoverySpec recovery;
  absl::Duration coordinator_timeout = absl::Minutes(10);  // trains on without it for so long

  bool hash_tensors = false;

  std::vector<DeviceKind> devices;  // by stage: what the others compute on
  std::vector<v1::SimDevice> sim;  // by stage, if the job is simulated; else empty
  bool simulated() const { return !sim.empty(); }
  // The payloads of what this stage sends take declared time instead of travelling.
  bool hollow_from(int sender) const { return simulated() && sim[sender].wire(); }

  // Tensors lie in memory that only the device reaches: what travels passes through host memory.
  bool staged() const { return shape.device != DeviceKind::kCpu; }

  bool Skips(int64_t step) const {
    return std::any_of(skipped.begin(), skipped.end(), [step](const v1::StepRange& range) {
      return range.first() <= step && step <= range.last();
    });
  }

  int stage() const { return static_cast<int>(shape.stage); }
  int num_stages() const { return static_cast<int>(shape.num_stages); }
  bool first() const { return stage() == 0; }
  bool last() const { return stage() == num_stages() - 1; }
  // The head computes with the embedding's weight, which lives on another stage.
  bool tie_crosses_stages() const { return shape.model.tied && num_stages() > 1; }
  const std::string& worker() const { return peers[shape.stage].worker(); }
  const std::string& host() const { return peers[shape.stage].host().id(); }
  // Stage `k` may write to host memory of this process: both say that they are on one host, and
  // what it sends really travels.
  bool MayShareMemoryWith(int k) const {
    const bool may = transport == v1::TRANSPORT_UNSPECIFIED || transport == v1::TRANSPORT_AUTO ||
                     transport == v1::TRANSPORT_SHM;
    return may && !host().empty() && peers[k].host().id() == host() && !hollow_from(k);
  }
  int num_micro_batches() const { return static_cast<int>(micro_batches.size()); }
  // Of every activation and gradient of micro-batch `m`: [tokens, width].
  std::vector<int64_t> BoundaryShape(int m) const {
    return {micro_batches[m].tokens(), shape.model.width};
  }
  // Of the same: what pipeline.boundary_dtype says.
  ElementType boundary_type() const {
    return shape.bf16_boundaries ? ElementType::kBfloat16 : ElementType::kFloat32;
  }
  int64_t tokens() const {  // of a whole mini-batch
    int64_t n = 0;
    for (const MicroBatchShape& mb : micro_batches) n += mb.tokens();
    return n;
  }
};

}  // namespace headrace
