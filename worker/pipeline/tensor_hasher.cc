#include "worker/pipeline/tensor_hasher.h"

#include "common/sha256.h"

namespace headrace {

uint64_t HashTensor(const Tensor& tensor) {
  const std::string hex =
      Sha256Hex({static_cast<const char*>(tensor.data), static_cast<size_t>(tensor.bytes())});
  uint64_t hash = 0;
  for (int i = 7; i >= 0; --i) {
    hash = hash << 8 | static_cast<uint64_t>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  }
  return hash;
}

void TensorHasher::Add(std::string_view name, const Tensor& tensor) {
  hashes_.insert_or_assign(std::string(name), HashTensor(tensor));
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
