#include <bit>
#include <limits>

#include "worker/backend/cuda/kernels.h"
#include "worker/backend/cuda/kernels_testing.h"

namespace headrace::cuda {
namespace {

template <typename T>
class Activations : public ::testing::Test {};
TYPED_TEST_SUITE(Activations, ActivationTypes);

double GeluOf(double x) {
  return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
double SiluOf(double x) { return x / (1 + std::exp(-x)); }
double Slope(double (*f)(double), double x) { return (f(x + 1e-6) - f(x - 1e-6)) / 2e-6; }

TYPED_TEST(Activations, OfGeluMatchItsFormulaAndItsSlope) {
  using T = TypeParam;
  for (int64_t count : {1, 7, 8, 1029}) {
    for (int shift : {0, 1}) {
      Doubles x = RandomValues(count, 1, 6), dy = RandomValues(count, 2);
      OnDevice<T> dx(x, shift), ddy(dy, shift), y(count, shift), d(count, shift);
      EXPECT_CUDA_OK(Gelu(dx.get(), y.get(), count, nullptr));
      EXPECT_CUDA_OK(GeluBackward(ddy.get(), dx.get(), d.get(), count, nullptr));
      Doubles want, want_d;
      for (size_t i = 0; i < x.size(); ++i) {
        want.push_back(GeluOf(x[i]));
        want_d.push_back(dy[i] * Slope(GeluOf, x[i]));
      }
      ExpectClose(y.doubles(), want, kBound<T>, "gelu");
      ExpectClose(d.doubles(), want_d, kBound<T>, "its gradient");
      EXPECT_CUDA_OK(GeluBackward(ddy.get(), dx.get(), ddy.get(), count, nullptr));  // dx may be dy
      ExpectClose(ddy.doubles(), want_d, kBound<T>, "its gradient in place");
    }
  }
}

TYPED_TEST(Activations, OfGeluAreFiniteFarOut) {
  using T = TypeParam;
  Doubles x = {-1e4, -40, 40, 1e4}, dy = {1, 1, 1, 1};
  OnDevice<T> dx(x), ddy(dy), y(4), d(4);
  EXPECT_CUDA_OK(Gelu(dx.get(), y.get(), 4, nullptr));
  EXPECT_CUDA_OK(GeluBackward(ddy.get(), dx.get(), d.get(), 4, nullptr));
  ExpectClose(y.doubles(), {0, 0, x[2], x[3]}, 1e-6, "gelu");
  ExpectClose(d.doubles(), {0, 0, 1, 1}, 1e-6, "its gradient");
}

TYPED_TEST(Activations, OfSwiGluMatchItsFormulaAndItsSlope) {
  using T = TypeParam;
  for (int64_t width : {1, 5, 16, 131}) {
    const int64_t n = 3;
    Doubles gate_up = RandomValues(n * 2 * width, 1, 5), dy = RandomValues(n * width, 2);
    OnDevice<T> in(gate_up), ddy(dy), y(n * width), d(n * 2 * width);
    EXPECT_CUDA_OK(SwiGlu(in.get(), y.get(), n, width, nullptr));
    EXPECT_CUDA_OK(SwiGluBackward(ddy.get(), in.get(), d.get(), n, width, nullptr));
    Doubles want(static_cast<size_t>(n * width)), want_d(gate_up.size());
    for (int64_t t = 0; t < n; ++t) {
      for (int64_t j = 0; j < width; ++j) {
        const auto gate = static_cast<size_t>(2 * t * width + j), up = gate + width;
        const auto at = static_cast<size_t>(t * width + j);
        want[at] = SiluOf(gate_up[gate]) * gate_up[up];
        want_d[gate] = dy[at] * gate_up[up] * Slope(SiluOf, gate_up[gate]);
        want_d[up] = dy[at] * SiluOf(gate_up[gate]);
      }
    }
    ExpectClose(y.doubles(), want, kBound<T>, "swiglu");
    ExpectClose(d.doubles(), want_d, kBound<T>, "its gradient");
  }
}

TYPED_TEST(Activations, OfDropoutHaveTheMaskOfTheirStream) {
  using T = TypeParam;
  const RandomStream mask = MakeStream(5, RandomPurpose::kDropout, 1, 2, 3);
  for (int64_t count : {1, 6, 8, 777}) {
    Doubles x = RandomValues(count, 1), want;
    OnDevice<T> dx(x), y(count);
    EXPECT_CUDA_OK(Dropout(dx.get(), y.get(), count, 0.3f, mask, nullptr));
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t bits = mask.Block(static_cast<uint32_t>(i / 4))[static_cast<size_t>(i % 4)];
      want.push_back(UniformFloat(bits) < 0.3f ? 0 : x[static_cast<size_t>(i)] / (1 - 0.3));
    }
    ExpectClose(y.doubles(), want, kBound<T>, "dropout");
    EXPECT_CUDA_OK(Dropout(dx.get(), dx.get(), count, 0.3f, mask, nullptr));
    ExpectClose(dx.doubles(), want, kBound<T>, "dropout in place");
  }
}

TYPED_TEST(Activations, AreAdded) {
  using T = TypeParam;
  for (int64_t count : {1, 8, 1031}) {
    Doubles a = RandomValues(count, 1), b = RandomValues(count, 2), want;
    OnDevice<T> da(a, 1), db(b);
    EXPECT_CUDA_OK(Add(da.get(), db.get(), da.get(), count, nullptr));
    for (size_t i = 0; i < a.size(); ++i) want.push_back(a[i] + b[i]);
    ExpectClose(da.doubles(), want, kBound<T>, "sum");
  }
}

TEST(Conversions, RoundToNearestEvenAndKeepNaN) {
  std::vector<float> x = {0,
                          1,
                          -1.00390625f,
                          1.01171875f,
                          3.4e38f,
                          std::numeric_limits<float>::infinity(),
                          std::bit_cast<float>(0x7f800001u),
                          std::bit_cast<float>(0xffffffffu)};
  // Ties: 1 + 2^-8 goes down to even, 1 + 3 · 2^-8 up to even.
  const std::vector<uint16_t> want = {0, 0x3f80, 0xbf80, 0x3f82, 0x7f80, 0x7f80, 0x7fc0, 0xffff};
  for (int64_t count : {int64_t{8}, int64_t{5}}) {
    float* from = nullptr;
    ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&from), 32), cudaSuccess);
    cudaMemcpy(from, x.data(), 32, cudaMemcpyHostToDevice);
    OnDevice<uint16_t> narrow(count);
    OnDevice<float> wide(count);
    EXPECT_CUDA_OK(NarrowBf16(from, narrow.get(), count, nullptr));
    EXPECT_CUDA_OK(WidenBf16(narrow.get(), wide.get(), count, nullptr));
    const std::vector<uint16_t> got = narrow.Read();
    const std::vector<float> back = wide.Read();
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i], want[i]) << i;
      EXPECT_EQ(std::bit_cast<uint32_t>(back[i]), uint32_t{want[i]} << 16) << i;
    }
    cudaFree(from);
  }
}

TEST(Conversions, FillEveryElementAndNoOther) {
  for (int64_t count : {1, 4, 1027}) {
    OnDevice<float> x(count, 1);
    EXPECT_CUDA_OK(Fill(x.get(), count, 2.5f, nullptr));
    for (double v : x.doubles()) EXPECT_EQ(v, 2.5);
  }
}

TEST(Launches, DoNotAnswerForEarlierCalls) {
  OnDevice<float> x(3);
  void* nothing = nullptr;
  EXPECT_EQ(cudaMalloc(&nothing, size_t{1} << 60), cudaErrorMemoryAllocation);
  EXPECT_CUDA_OK(Fill(x.get(), 3, 1.0f, nullptr));
}

}  // namespace
}  // namespace headrace::cuda
