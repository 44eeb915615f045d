// A view of numbers in memory somebody else owns. Row-major, dense.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace headrace {

// kBfloat16: the upper half of a float's bits, in a uint16_t.
enum class ElementType { kFloat32, kInt32, kFloat64, kBfloat16 };

inline int64_t ElementBytes(ElementType type) {
  if (type == ElementType::kFloat64) return 8;
  return type == ElementType::kBfloat16 ? 2 : 4;
}

struct Tensor {
  void* data = nullptr;  // device memory, aligned to kAlignment (plan/alignment.h)
  ElementType type = ElementType::kFloat32;
  std::vector<int64_t> shape;

  int64_t elements() const {
    int64_t n = 1;
    for (int64_t s : shape) n *= s;
    return n;
  }
  int64_t bytes() const { return elements() * ElementBytes(type); }
  float* f32() const { return static_cast<float*>(data); }
  int32_t* i32() const { return static_cast<int32_t*>(data); }
  double* f64() const { return static_cast<double*>(data); }
  uint16_t* bf16() const { return static_cast<uint16_t*>(data); }
};

}  // namespace headrace
