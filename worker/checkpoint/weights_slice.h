// A stage's part of the model as a safetensors file: its own parameters in layer order, so that the
// payloads of all slices, one after the other, are the model's parameters whatever the number of
// stages was.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "headrace/v1/job.pb.h"
#include "worker/backend/compute_device.h"
#include "worker/layers/stage_model.h"

namespace headrace {

// Writes own parameters (not a borrowed one) to `path` and says what the file is: hash and size;
// the caller knows the layers. Not durable by itself: the coordinator's store is.
// `device` has the parameters; null: host memory.
//   the system's error  names the path; the file is gone
//   the device's error  likewise, names the parameter
absl::StatusOr<v1::WeightsSlice> WriteWeightsSlice(const std::string& path,
                                                   const std::vector<Parameter>& parameters,
                                                   ComputeDevice* device = nullptr);

// Fills `parameters` from whichever of the files has each name (a borrowed one's owner's).
//   NOT_FOUND         a parameter is in none of them
//   INVALID_ARGUMENT  a file is not safetensors, or a tensor has another shape (names it)
//   the device's error  names the parameter
absl::Status LoadWeights(const std::vector<std::string>& paths, std::vector<Parameter>* parameters,
                         ComputeDevice* device = nullptr);

}  // namespace headrace
