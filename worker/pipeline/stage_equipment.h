// Everything one stage owns: memory, layers, optimizer, stash, pools, inbox and its view of the
// data. Built once, before step 1, by the thread that will compute; nothing is allocated in a step.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/token_file.h"
#include "headrace/v1/job.pb.h"
#include "worker/backend/compute_device.h"
#include "worker/data/sampler.h"
#include "worker/layers/stage_model.h"
#include "worker/optimizer/optimizer.h"
#include "worker/pipeline/boundary_codec.h"
#include "worker/pipeline/device_numbers.h"
#include "worker/pipeline/inbox.h"
#include "worker/pipeline/link_pools.h"
#include "worker/pipeline/stage_job.h"
#include "worker/pipeline/stage_parts.h"
#include "worker/pipeline/stash.h"
#include "worker/pipeline/token_io.h"
#include "worker/sim/sim_wire.h"

namespace headrace {

class StageEquipment {
 public:
  // Opens the device and carves all memory; weights are zero until somebody fills them. `job` must
  // outlive the equipment. A simulated stage asks `open` for nothing.
  //   RESOURCE_EXHAUSTED  names the tensor, or what the device has
  //   else as DeviceOpener
  static absl::StatusOr<std::unique_ptr<StageEquipment>> Create(const StageJob* job,
                                                                const DeviceOpener& open = OpenCpu);
  StageEquipment(const StageEquipment&) = delete;
  StageEquipment& operator=(const StageEquipment&) = delete;

  // The first and the last stage of a training job read the tokens at `path`. Errors as
  // TokenFile::Open and Sampler::Create.
  absl::Status OpenData(const std::string& path);

  StageModel* model() { return model_.get(); }
  Optimizer* optimizer() { return optimizer_.get(); }  // null when generating
  ComputeDevice* device() { return device_.get(); }
  TokenIo* tokens() { return token_io_.get(); }
  DeviceNumbers* losses() { return losses_.get(); }  // these null when generating
  DeviceNumbers* evaluation_loss() { return evaluation_loss_.get(); }
  DeviceNumbers* squares() { return squares_.get(); }
  Stash* stash() { return stash_.get(); }
  BoundaryCodec* codec() { return codec_.get(); }
  Inbox* inbox() { return inbox_.get(); }
  const LinkPools& pools() const { return pools_; }
  const SharedInputs& shared_inputs() const { return shared_inputs_; }
  const Sampler* sampler() const { return sampler_ ? &*sampler_ : nullptr; }
  // All of it, as what computes takes it.
  StageParts Parts(Exchange* exchange, const std::atomic<bool>* cancelled) const;

  // What was in use at most so far, kind by kind.
  v1::MemoryBytes PeakMemory() const;
  v1::MemoryBytes MemoryInUse() const;

 private:
  explicit StageEquipment(const StageJob* job) : job_(*job) {}
  absl::Status Carve(const DeviceOpener& open);
  absl::Status OpenDevice(const DeviceOpener& open);
  absl::Status CarveModel();
  absl::Status CarveNumbers();
  // Takes the memory that others may write to; without, why_not_shared_ says why.
  void Share();

  const StageJob& job_;
  // In the order of construction; what holds memory of another goes before it.
  std::unique_ptr<SharedRegion> region_;  // null: no input is shared
  std::string why_not_shared_;
  std::unique_ptr<ComputeDevice> device_;
  std::unique_ptr<StageModel> model_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<Stash> stash_;
  std::unique_ptr<BoundaryCodec> codec_;
  std::unique_ptr<TokenIo> token_io_;
  std::unique_ptr<DeviceNumbers> losses_, evaluation_loss_, squares_;
  LinkPools pools_;
  std::unique_ptr<SimWire> wire_;  // simulated; goes after the inbox
  SharedInputs shared_inputs_;
  std::unique_ptr<Inbox> inbox_;
  std::unique_ptr<TokenFile> tokens_;
  std::optional<Sampler> sampler_;
};

}  // namespace headrace
