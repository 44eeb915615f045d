// Hands out the tensors of a region one after the other, each aligned as plan/layer_spec.h counts
// it.
#pragma once

#include <cstdint>

#include "plan/layer_spec.h"
#include "worker/backend/act.h"

namespace headrace {

class Carver {
 public:
  // `region` is aligned to kAlignment. A region only read is carved as well: whether a tensor in it
  // may be written is the caller's to know.
  Carver(const void* region, ElementType activations)
      : next_(static_cast<char*>(const_cast<void*>(region))), activations_(activations) {}

  Act Acts(int64_t elements) {
    return {Bytes(ElementBytes(activations_) * elements), activations_};
  }

  float* Floats(int64_t elements) { return static_cast<float*>(Bytes(4 * elements)); }
  void* Bytes(int64_t bytes) {
    void* piece = next_;
    next_ += AlignUp(bytes);
    return piece;
  }

 private:
  char* next_;
  const ElementType activations_;
};

}  // namespace headrace
