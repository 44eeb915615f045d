// Hashes of what a stage computes, for `headrace verify`: two runs that should agree are compared
// tensor by tensor, and the first difference has a name.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "headrace/v1/cluster.pb.h"
#include "worker/backend/compute_device.h"

namespace headrace {

// The first 8 bytes of the SHA-256 of the tensor's bytes, little endian. Errors as VisitBytes.
absl::StatusOr<uint64_t> HashTensor(ComputeDevice* device, std::string_view name,
                                    const Tensor& tensor);

// Owned by the compute thread.
class TensorHasher {
 public:
  // `device` has the tensors; it must outlive this.
  explicit TensorHasher(ComputeDevice* device) : device_(device) {}

  // A name seen again, as in a recompute, overwrites: it must be the same tensor. What cannot be read
  // is the device's failure, which it keeps.
  void Add(std::string_view name, const Tensor& tensor);
  // What was added since the last call, by name.
  v1::TensorHashes Drain(int64_t step, int64_t stage);

 private:
  ComputeDevice* const device_;
  std::map<std::string, uint64_t> hashes_;
};

}  // namespace headrace
