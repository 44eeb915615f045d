// A stage's state after a step as a safetensors file: what training goes on from. Of each own
// parameter, in layer order, its weight and what the optimizer keeps of it:
//
//   transformer.wte.weight
//   optimizer.m.transformer.wte.weight
//   optimizer.v.transformer.wte.weight
//
// and the step as metadata. Data and dropout are functions of seed and step, so that is all. The
// stage that loads it looks for its tensors by name in the slices of all stages there were: their
// number may be another than its own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/cancellation.h"
#include "headrace/v1/job.pb.h"
#include "worker/backend/compute_device.h"
#include "worker/layers/stage_model.h"
#include "worker/optimizer/optimizer.h"

namespace headrace {

struct StateTensor {
  std::string name;   // in a slice
  int64_t layer = 0;  // that it is found with
  Tensor tensor;
};

// In the order above; of borrowed weights nothing. The tensors are where parameters and optimizer
// have them.
std::vector<StateTensor> OwnState(const std::vector<Parameter>& parameters,
                                  const Optimizer& optimizer);

// What a slice of these weighs, but for its header.
int64_t BytesOf(const std::vector<StateTensor>& state);

// Copies the tensors into a new file at `path`, and no more: nothing is hashed, nothing is made
// durable, so this takes as long as copying memory. Returns the file's size.
//   the system's error  names the path; the file is gone
//   the device's error  likewise, names the tensor
absl::StatusOr<int64_t> WriteState(const std::string& path, const std::vector<StateTensor>& state,
                                   int64_t step, ComputeDevice* device);

// SHA-256 of a file, read piece by piece.
//   the system's error  names the path
//   CANCELLED           `cancellation` (may be null) was cancelled
absl::StatusOr<std::string> HashFile(const std::string& path, const Cancellation* cancellation);

// A slice of some stage's state that has been fetched.
struct StateFile {
  v1::WeightsSlice slice;
  std::string path;
};

// Fills parameters (a borrowed one with its owner's weight) and optimizer with the state after
// `step`.
//   NOT_FOUND         a tensor is in none of the files
//   INVALID_ARGUMENT  a file is not safetensors or is of another step, or a tensor has another
//   shape the device's error  names the tensor
// For the first two `*bad_slice` is the hash of the slice that has it wrong, or should have it.
absl::Status LoadState(const std::vector<StateFile>& files, int64_t step,
                       std::vector<Parameter>* parameters, const Optimizer& optimizer,
                       ComputeDevice* device, std::string* bad_slice);

}  // namespace headrace
