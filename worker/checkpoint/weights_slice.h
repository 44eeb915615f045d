// A stage's part of the model as a safetensors file: its own parameters in layer order, so that the
// payloads of all slices, one after the other, are the model's parameters whatever the number of
// stages was.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "headrace/v1/job.pb.h"
#include "worker/layers/stage_model.h"

namespace headrace {

// Writes own parameters (not a borrowed one) to `path` and says what the file is: hash and size;
// the caller knows the layers. Not durable by itself: the coordinator's store is.
//   the system's error  names the path; the file is gone
absl::StatusOr<v1::WeightsSlice> WriteWeightsSlice(const std::string& path,
                                                   const std::vector<Parameter>& parameters);

// Fills `parameters` from whichever of the files has each name (a borrowed one's owner's).
//   NOT_FOUND         a parameter is in none of them
//   INVALID_ARGUMENT  a file is not safetensors, or a tensor has another shape (names it)
absl::Status LoadWeights(const std::vector<std::string>& paths, std::vector<Parameter>* parameters);

}  // namespace headrace
