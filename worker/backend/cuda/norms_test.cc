#include "worker/backend/cuda/kernels.h"
#include "worker/backend/cuda/kernels_testing.h"

namespace headrace::cuda {
namespace {

constexpr double kEpsilon = 1e-5;

template <typename T>
class Norms : public ::testing::Test {};
TYPED_TEST_SUITE(Norms, ActivationTypes);

struct Size {
  int64_t n, width;
};
// 1, primes, one around a pack and a warp's packs, and more rows than a chunk of column sums.
const Size kSizes[] = {{1, 1}, {3, 7}, {5, 129}, {2, 257}, {67, 24}};

Doubles Zeros(int64_t count) { return Doubles(static_cast<size_t>(count)); }

struct Expected {
  Doubles y, mean, rstd, dx, dgain, dbias;
};

// LayerNorm, or RMSNorm where `centred` is false (mean 0, no bias), forward and backward.
Expected Reference(const Doubles& x, const Doubles& gain, const Doubles& bias, const Doubles& dy,
                   const Size& size, bool centred) {
  const auto w = static_cast<size_t>(size.width), n = static_cast<size_t>(size.n);
  Expected e{Zeros(size.n * size.width), Doubles(n), Doubles(n),
             Zeros(size.n * size.width), Doubles(w), Doubles(w)};
  for (size_t t = 0; t < n; ++t) {
    double mean = 0, square = 0, h_sum = 0, hx_sum = 0;
    for (size_t j = 0; j < w && centred; ++j) mean += x[t * w + j] / static_cast<double>(w);
    for (size_t j = 0; j < w; ++j) {
      square += (x[t * w + j] - mean) * (x[t * w + j] - mean) / static_cast<double>(w);
    }
    const double r = 1 / std::sqrt(square + kEpsilon);
    for (size_t j = 0; j < w; ++j) {
      const double hat = (x[t * w + j] - mean) * r;
      e.y[t * w + j] = gain[j] * hat + (centred ? bias[j] : 0);
      h_sum += dy[t * w + j] * gain[j] / static_cast<double>(w);
      hx_sum += dy[t * w + j] * gain[j] * hat / static_cast<double>(w);
      e.dgain[j] += dy[t * w + j] * hat;
      e.dbias[j] += dy[t * w + j];
    }
    for (size_t j = 0; j < w; ++j) {
      const double hat = (x[t * w + j] - mean) * r;
      e.dx[t * w + j] = r * (dy[t * w + j] * gain[j] - (centred ? h_sum : 0) - hat * hx_sum);
    }
    e.mean[t] = mean;
    e.rstd[t] = r;
  }
  return e;
}

Doubles Plus(Doubles a, const Doubles& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

// Norms of rows of one element divide by √epsilon: their error is that of the difference.
template <typename T>
double Bound(const Size& size) {
  return size.width == 1 ? 1e-2 : 2 * kBound<T>;
}

template <typename T>
void CheckNorm(const Size& size, bool centred, bool joined, int shift) {
  const int64_t count = size.n * size.width;
  Doubles x = RandomValues(count, 1, 2), gain = RandomValues(size.width, 2);
  Doubles bias = RandomValues(size.width, 3), dy = RandomValues(count, 4);
  Doubles branch = RandomValues(count, 5), old_gain = RandomValues(size.width, 6);
  Doubles old_bias = RandomValues(size.width, 7), residual = RandomValues(count, 8);
  OnDevice<T> dx_in(x, shift), ddy(dy, shift), dbranch(branch, shift), sum(count, shift);
  OnDevice<T> y(count, shift), dx(count, shift), dresidual(residual, shift);
  OnDevice<float> dgain_in(gain), dbias_in(bias), mean(size.n), rstd(size.n);
  OnDevice<float> dgain(old_gain), dbias(old_bias);
  OnDevice<float> scratch(ColumnSumsScratchBytes(size.n, size.width, 2) / 4);
  const T* other = joined ? dbranch.get() : nullptr;
  if (centred) {
    EXPECT_CUDA_OK(LayerNorm<T>(dx_in.get(), other, sum.get(), dgain_in.get(), dbias_in.get(),
                                y.get(), mean.get(), rstd.get(), size.n, size.width, kEpsilon,
                                nullptr));
  } else {
    EXPECT_CUDA_OK(RmsNorm<T>(dx_in.get(), other, sum.get(), dgain_in.get(), y.get(), rstd.get(),
                              size.n, size.width, kEpsilon, nullptr));
  }
  Doubles normalised = x;
  if (joined) {
    ExpectClose(sum.doubles(), Plus(x, branch), kBound<T>, "sum");
    normalised = sum.doubles();
  }
  const Expected want = Reference(normalised, gain, bias, dy, size, centred);
  ExpectClose(y.doubles(), want.y, Bound<T>(size), "y");
  ExpectClose(rstd.doubles(), want.rstd, 1e-5, "rstd");
  T* in = joined ? sum.get() : dx_in.get();
  if (centred) {
    ExpectClose(mean.doubles(), want.mean, 1e-5, "mean");
    EXPECT_CUDA_OK(LayerNormBackward<T>(ddy.get(), in, dgain_in.get(), mean.get(), rstd.get(),
                                        joined ? dresidual.get() : nullptr, dx.get(), dgain.get(),
                                        dbias.get(), size.n, size.width, scratch.get(), nullptr));
    ExpectClose(dbias.doubles(), Plus(old_bias, want.dbias), 1e-5, "dbias");
  } else {
    EXPECT_CUDA_OK(RmsNormBackward<T>(ddy.get(), in, dgain_in.get(), rstd.get(),
                                      joined ? dresidual.get() : nullptr, dx.get(), dgain.get(),
                                      size.n, size.width, scratch.get(), nullptr));
  }
  ExpectClose(dgain.doubles(), Plus(old_gain, want.dgain), 1e-5, "dgain");
  if (size.width > 1 || joined) {
    ExpectClose(dx.doubles(), joined ? Plus(residual, want.dx) : want.dx, Bound<T>(size), "dx");
  }
}

TYPED_TEST(Norms, OfLayersMatchDoubleLoopsForwardAndBackward) {
  for (const Size& size : kSizes) {
    SCOPED_TRACE(size.width);
    CheckNorm<TypeParam>(size, true, false, 0);
    CheckNorm<TypeParam>(size, true, true, 1);
  }
}

TYPED_TEST(Norms, OfRootMeanSquaresMatchDoubleLoopsForwardAndBackward) {
  for (const Size& size : kSizes) {
    SCOPED_TRACE(size.width);
    CheckNorm<TypeParam>(size, false, false, 1);
    CheckNorm<TypeParam>(size, false, true, 0);
  }
}

TYPED_TEST(Norms, OfBiasesAreColumnSums) {
  using T = TypeParam;
  for (const Size& size : {Size{1, 1}, Size{130, 37}, Size{9, 300}}) {
    Doubles dy = RandomValues(size.n * size.width, 1), old = RandomValues(size.width, 2);
    OnDevice<T> ddy(dy, 1);
    OnDevice<float> dbias(old), scratch(ColumnSumsScratchBytes(size.n, size.width, 1) / 4);
    EXPECT_CUDA_OK(
        BiasGradient<T>(ddy.get(), dbias.get(), size.n, size.width, scratch.get(), nullptr));
    Doubles want = old;
    for (size_t i = 0; i < dy.size(); ++i) want[i % static_cast<size_t>(size.width)] += dy[i];
    ExpectClose(dbias.doubles(), want, 2e-6, "dbias");
  }
}

}  // namespace
}  // namespace headrace::cuda
