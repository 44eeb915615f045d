// What every tensor in an arena is aligned to. Apart from plan/layer_spec.h so that the backend need
// not know models.
#pragma once

#include <cstdint>

namespace headrace {

inline constexpr int64_t kAlignment = 64;  // bytes: a cache line, and one AVX-512 register

}  // namespace headrace
