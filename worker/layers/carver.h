// Hands out the tensors of a region one after the other, each aligned as plan/layer_spec.h counts
// it.
#pragma once

#include <cstdint>

#include "plan/layer_spec.h"

namespace headrace {

class Carver {
 public:
  // `region` is aligned to kAlignment. A region only read is carved as well: whether a tensor in it
  // may be written is the caller's to know.
  explicit Carver(const void* region) : next_(static_cast<char*>(const_cast<void*>(region))) {}

  float* Floats(int64_t elements) { return static_cast<float*>(Bytes(4 * elements)); }
  void* Bytes(int64_t bytes) {
    void* piece = next_;
    next_ += AlignUp(bytes);
    return piece;
  }

 private:
  char* next_;
};

}  // namespace headrace
