#include "worker/pipeline/tensor_hasher.h"

#include "common/sha256.h"
#include "common/status.h"

namespace headrace {

absl::StatusOr<uint64_t> HashTensor(ComputeDevice* device, std::string_view name,
                                    const Tensor& tensor) {
  Sha256 sha256;
  HEADRACE_RETURN_IF_ERROR(VisitBytes(
      device, tensor, name, [&sha256](std::string_view bytes) { sha256.Update(bytes); }));
  const std::string hex = sha256.Finish();
  uint64_t hash = 0;
  for (int i = 7; i >= 0; --i) {
    hash = hash << 8 | static_cast<uint64_t>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  }
  return hash;
}

void TensorHasher::Add(std::string_view name, const Tensor& tensor) {
  const absl::StatusOr<uint64_t> hash = HashTensor(device_, name, tensor);
  if (hash.ok()) hashes_.insert_or_assign(std::string(name), *hash);
}

v1::TensorHashes TensorHasher::Drain(int64_t step, int64_t stage) {
  v1::TensorHashes hashes;
  hashes.set_step(step);
  hashes.set_stage(stage);
  for (const auto& [name, hash] : hashes_) {
    hashes.add_names(name);
    hashes.add_hashes(hash);
  }
  hashes_.clear();
  return hashes;
}

}  // namespace headrace
