// What the kernels' tests share: numbers on the device, rounded as the kernel sees them, and
// comparison with doubles. References are plain loops in double, independent of the kernels.
//
// The same sources are meant for a device: they use the runtime API alone.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "common/philox.h"
#include "gtest/gtest.h"
#include "worker/backend/cuda/pack.h"

namespace headrace::cuda {

using Doubles = std::vector<double>;

template <typename T>
T Rounded(double x) {
  if constexpr (sizeof(T) == 2 && !std::is_integral_v<T>) {
    return __float2bfloat16(static_cast<float>(x));
  } else {
    return static_cast<T>(x);
  }
}
template <typename T>
double Exact(T x) {
  if constexpr (sizeof(T) == 2 && !std::is_integral_v<T>) {
    return __bfloat162float(x);
  } else {
    return static_cast<double>(x);
  }
}

// `count` numbers on the device, `shift` elements behind an aligned address. Whatever is written
// before or behind them, a sanitizer reports; all bits are set at first, so that a number that is
// read without having been written is NaN.
template <typename T>
class OnDevice {
 public:
  explicit OnDevice(int64_t count, int shift = 0) : count_(count), shift_(shift) {
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&base_), bytes() + shift * sizeof(T) + 1),
              cudaSuccess);
    cudaMemset(base_, 0xff, bytes() + shift * sizeof(T));
  }
  // Rounds `values` to T, in place: what the reference computes with.
  explicit OnDevice(Doubles& values, int shift = 0)
      : OnDevice(static_cast<int64_t>(values.size()), shift) {
    std::vector<T> host(values.size());
    for (size_t i = 0; i < host.size(); ++i) {
      host[i] = Rounded<T>(values[i]);
      values[i] = Exact(host[i]);
    }
    cudaMemcpy(get(), host.data(), bytes(), cudaMemcpyHostToDevice);
  }
  ~OnDevice() { cudaFree(base_); }
  OnDevice(const OnDevice&) = delete;

  T* get() { return base_ + shift_; }
  std::vector<T> Read() {
    std::vector<T> host(static_cast<size_t>(count_));
    EXPECT_EQ(cudaMemcpy(host.data(), get(), bytes(), cudaMemcpyDeviceToHost), cudaSuccess)
        << cudaGetErrorString(cudaPeekAtLastError());
    return host;
  }
  Doubles doubles() {
    Doubles values;
    for (T x : Read()) values.push_back(Exact(x));
    return values;
  }

 private:
  size_t bytes() const { return static_cast<size_t>(count_) * sizeof(T); }
  const int64_t count_;
  const int shift_;
  T* base_ = nullptr;
};

// Uniform in (−range, range), different for each seed.
inline Doubles RandomValues(int64_t count, uint32_t seed, double range = 1) {
  const RandomStream stream{{seed, 77}, 1, 2, 3};
  Doubles values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = (2.0 * UniformFloat(stream.Block(static_cast<uint32_t>(i))[0]) - 1.0) * range;
  }
  return values;
}
inline Doubles RandomIds(int64_t count, uint32_t seed, int64_t bound) {
  Doubles ids = RandomValues(count, seed);
  for (double& id : ids) id = std::floor((id + 1) / 2 * static_cast<double>(bound));
  return ids;
}

// |actual − expected| ≤ bound · max(|expected|, root mean square of expected), element by element.
inline void ExpectClose(const Doubles& actual, const Doubles& expected, double bound,
                        const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double squares = 0;
  for (double e : expected) squares += e * e;
  const double rms = std::sqrt(squares / std::fmax(1, static_cast<double>(expected.size())));
  for (size_t i = 0; i < expected.size(); ++i) {
    const double allowed = bound * std::fmax(std::abs(expected[i]), rms) + 1e-30;
    ASSERT_LE(std::abs(actual[i] - expected[i]), allowed)
        << what << ": element " << i << " is " << actual[i] << ", expected " << expected[i];
  }
}

// fp32 sums of a few hundred terms; bfloat16 has 8 bits, so half a unit is 2^-9 = 2e-3.
template <typename T>
inline constexpr double kBound = sizeof(T) == 4 ? 2e-6 : 4e-3;

// Tests that run for float and for bfloat16.
using ActivationTypes = ::testing::Types<float, Bf16>;

#define EXPECT_CUDA_OK(call) \
  EXPECT_EQ(call, cudaSuccess) << cudaGetErrorString(cudaPeekAtLastError())

}  // namespace headrace::cuda
