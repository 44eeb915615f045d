// What the ops' tests share: aligned buffers with a guard behind them, numbers, comparison with
// doubles, finite differences.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "common/philox.h"
#include "gtest/gtest.h"
#include "worker/backend/ops.h"

namespace headrace {

using Doubles = std::vector<double>;

// `count` floats, `shift` floats behind a page; the destructor fails the test if anything was
// written right behind them.
class Buffer {
 public:
  explicit Buffer(int64_t count, int shift = 0)
      : count_(count),
        storage_(static_cast<char*>(::operator new (
            static_cast<size_t>((count + shift) * 4 + kGuardBytes), std::align_val_t{4096}))) {
    data_ = reinterpret_cast<float*>(storage_.get()) + shift;
    std::fill(data_, data_ + count, std::nanf(""));  // an op that sets must not read what was there
    std::memset(data_ + count, kGuard, kGuardBytes);
  }
  Buffer(const Doubles& values, int shift = 0)
      : Buffer(static_cast<int64_t>(values.size()), shift) {
    for (size_t i = 0; i < values.size(); ++i) data_[i] = static_cast<float>(values[i]);
  }
  Buffer(Buffer&&) = default;
  ~Buffer() {
    if (storage_ == nullptr) return;
    const char* guard = reinterpret_cast<const char*>(data_ + count_);
    for (int i = 0; i < kGuardBytes; ++i) {
      EXPECT_EQ(guard[i], kGuard) << "written " << i << " bytes behind " << count_ << " floats";
    }
  }

  float* data() { return data_; }
  int64_t count() const { return count_; }
  float operator[](int64_t i) const { return data_[i]; }
  Doubles doubles() const { return Doubles(data_, data_ + count_); }
  void Set(double value) { std::fill(data_, data_ + count_, static_cast<float>(value)); }

 private:
  static constexpr char kGuard = 0x5a;
  static constexpr int kGuardBytes = 64;
  struct Free {
    void operator()(char* p) const { ::operator delete (p, std::align_val_t{4096}); }
  };
  int64_t count_;
  std::unique_ptr<char, Free> storage_;
  float* data_;
};

// `count` values uniform in (−range, range), exactly representable as float, different for each
// `seed`.
inline Doubles RandomValues(int64_t count, uint32_t seed, double range = 1) {
  const RandomStream stream{{seed, 77}, 1, 2, 3};
  Doubles values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t bits = stream.Block(static_cast<uint32_t>(i))[0];
    values[i] = static_cast<float>((2.0 * UniformFloat(bits) - 1.0) * range);
  }
  return values;
}

inline std::vector<int32_t> RandomIds(int64_t count, uint32_t seed, int64_t bound) {
  const RandomStream stream{{seed, 78}, 1, 2, 3};
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<int32_t>(stream.Block(static_cast<uint32_t>(i))[0] %
                                  static_cast<uint32_t>(bound));
  }
  return ids;
}

// |actual − expected| ≤ bound · max(|expected|, root mean square of expected), element by element:
// what is small beside its tensor may be off by what rounding of the large ones leaves.
inline void ExpectClose(const Buffer& actual, const Doubles& expected, double bound,
                        const std::string& what) {
  ASSERT_EQ(actual.count(), static_cast<int64_t>(expected.size())) << what;
  double squares = 0;
  for (double e : expected) squares += e * e;
  const double rms = std::sqrt(squares / std::max<double>(1, static_cast<double>(expected.size())));
  for (size_t i = 0; i < expected.size(); ++i) {
    const double a = actual[static_cast<int64_t>(i)];
    const double allowed = bound * std::max(std::abs(expected[i]), rms) + 1e-30;
    ASSERT_TRUE(std::abs(a - expected[i]) <= allowed)
        << what << ": element " << i << " is " << a << ", expected " << expected[i] << ", off by "
        << std::abs(a - expected[i]) << ", allowed " << allowed;
  }
}

inline double Dot(const Doubles& a, const Doubles& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// Central differences of `loss` at `x`. In double, exact to about 1e-9.
inline Doubles NumericGradient(const std::function<double(const Doubles&)>& loss, Doubles x) {
  Doubles gradient(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double at = x[i], h = 1e-5 * std::max(1.0, std::abs(at));
    x[i] = at + h;
    const double above = loss(x);
    x[i] = at - h;
    const double below = loss(x);
    x[i] = at;
    gradient[i] = (above - below) / (2 * h);
  }
  return gradient;
}

// What the ops add to a loss, and put into sums.
inline double LossOf(Ops& ops, ConstAct logits, const int32_t* targets, int64_t n,
                     int64_t vocabulary) {
  double loss = 0;
  ops.CrossEntropy(logits, targets, &loss, n, vocabulary);
  return loss;
}
inline double SquaredNormOf(Ops& ops, const float* x, int64_t count) {
  double sum = 0;
  ops.SquaredNorm(x, count, &sum);
  return sum;
}

inline Doubles Plus(Doubles a, const Doubles& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

}  // namespace headrace
