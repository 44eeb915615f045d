// Pointers to activations and their gradients, which a backend keeps in a type of its own
// (Ops::activation_type): fp32 on a CPU, bfloat16 on a GPU where a job asks for it. Parameters,
// their gradients and statistics are fp32 everywhere and stay plain pointers.
//
//   Act        may be written            ConstAct   only read; every Act is one
//   a + n      n elements further on     a == nullptr, as of a pointer
//
// A float* is fp32 activations. Borrowed memory of the backend's device; trivially copied.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>

#include "worker/backend/tensor.h"

namespace headrace {

class Act {
 public:
  Act() = default;
  Act(std::nullptr_t) {}             // NOLINT: implicit, as of a pointer
  Act(float* data) : data_(data) {}  // NOLINT
  Act(void* data, ElementType type) : data_(data), type_(type) {
    assert(type == ElementType::kFloat32 || type == ElementType::kBfloat16);
  }

  void* data() const { return data_; }
  ElementType type() const { return type_; }
  // As the type says; a null pointer has any type.
  float* f32() const {
    assert(data_ == nullptr || type_ == ElementType::kFloat32);
    return static_cast<float*>(data_);
  }
  uint16_t* bf16() const {
    assert(data_ == nullptr || type_ == ElementType::kBfloat16);
    return static_cast<uint16_t*>(data_);
  }

  Act operator+(int64_t elements) const {
    return {static_cast<char*>(data_) + elements * ElementBytes(type_), type_};
  }
  friend bool operator==(Act a, Act b) { return a.data_ == b.data_; }

 private:
  void* data_ = nullptr;
  ElementType type_ = ElementType::kFloat32;
};

class ConstAct {
 public:
  ConstAct() = default;
  ConstAct(std::nullptr_t) {}                                             // NOLINT
  ConstAct(const float* data) : ConstAct(data, ElementType::kFloat32) {}  // NOLINT
  ConstAct(Act a) : act_(a) {}                                            // NOLINT
  ConstAct(const void* data, ElementType type) : act_(const_cast<void*>(data), type) {}

  const void* data() const { return act_.data(); }
  ElementType type() const { return act_.type(); }
  const float* f32() const { return act_.f32(); }
  const uint16_t* bf16() const { return act_.bf16(); }

  ConstAct operator+(int64_t elements) const { return act_ + elements; }
  friend bool operator==(ConstAct a, ConstAct b) { return a.act_ == b.act_; }

 private:
  Act act_;
};

// A parameter as products read it: fp32, and beside it the same numbers rounded to bfloat16 where
// the stage keeps them so (null: it does not). A float* is one without.
struct ConstWeight {
  ConstWeight() = default;
  ConstWeight(std::nullptr_t) {}                 // NOLINT: implicit, as of a pointer
  ConstWeight(const float* data) : f32(data) {}  // NOLINT
  ConstWeight(const float* data, const uint16_t* half) : f32(data), bf16(half) {}

  const float* f32 = nullptr;
  const uint16_t* bf16 = nullptr;
};

}  // namespace headrace
