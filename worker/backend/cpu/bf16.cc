#include <bit>

#include "worker/backend/cpu/cpu_ops.h"
#include "worker/backend/cpu/kernel.h"

namespace headrace {
namespace {

constexpr uint32_t kInfinity = 0x7f800000, kSign = 0x80000000, kQuiet = 0x00400000;

HEADRACE_KERNEL void NarrowRange(const float* x, uint16_t* y, int64_t begin, int64_t end) {
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(x[i]);
    const uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
    const bool nan = (bits & ~kSign) > kInfinity;  // rounding up could carry into an infinity
    y[i] = static_cast<uint16_t>((nan ? bits | kQuiet : rounded) >> 16);
  }
}

HEADRACE_KERNEL void WidenRange(const uint16_t* x, float* y, int64_t begin, int64_t end) {
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    y[i] = std::bit_cast<float>(static_cast<uint32_t>(x[i]) << 16);
  }
}

}  // namespace

void CpuOps::NarrowBf16(const float* x, uint16_t* y, int64_t count) {
  ParallelRanges(threads_, count, kElementGrain,
                 [&](int64_t begin, int64_t end) { NarrowRange(x, y, begin, end); });
}

void CpuOps::WidenBf16(const uint16_t* x, float* y, int64_t count) {
  ParallelRanges(threads_, count, kElementGrain,
                 [&](int64_t begin, int64_t end) { WidenRange(x, y, begin, end); });
}

}  // namespace headrace
