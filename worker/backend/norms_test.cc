#include "worker/backend/ops_testing.h"

namespace headrace {
namespace {

struct Case {
  int64_t n, width;
  std::string Name() const { return "n=" + std::to_string(n) + " width=" + std::to_string(width); }
};
const Case kCases[] = {{1, 1},  {1, 2},  {5, 7},  {3, 31}, {17, 32},
                       {2, 33}, {7, 64}, {3, 97}, {2, 769}};
const Case kSmallCases[] = {{1, 3}, {3, 5}, {2, 32}, {2, 33}};

constexpr double kEpsilon = 1e-5;
constexpr double kForwardBound = 1e-6;
// The backward subtracts two means from each element; the parameter gradients sum over rows.
constexpr double kBackwardBound = 4e-6;

Doubles LayerNormReference(const Doubles& x, const Doubles& gain, const Doubles& bias,
                           const Case& c) {
  Doubles y(x.size());
  for (int64_t t = 0; t < c.n; ++t) {
    const double* row = x.data() + t * c.width;
    double mean = 0, variance = 0;
    for (int64_t j = 0; j < c.width; ++j) mean += row[j] / static_cast<double>(c.width);
    for (int64_t j = 0; j < c.width; ++j) {
      variance += (row[j] - mean) * (row[j] - mean) / static_cast<double>(c.width);
    }
    for (int64_t j = 0; j < c.width; ++j) {
      y[static_cast<size_t>(t * c.width + j)] =
          gain[static_cast<size_t>(j)] * (row[j] - mean) / std::sqrt(variance + kEpsilon) +
          bias[static_cast<size_t>(j)];
    }
  }
  return y;
}

Doubles RmsNormReference(const Doubles& x, const Doubles& gain, const Case& c) {
  Doubles y(x.size());
  for (int64_t t = 0; t < c.n; ++t) {
    const double* row = x.data() + t * c.width;
    double square = 0;
    for (int64_t j = 0; j < c.width; ++j) square += row[j] * row[j] / static_cast<double>(c.width);
    for (int64_t j = 0; j < c.width; ++j) {
      y[static_cast<size_t>(t * c.width + j)] =
          gain[static_cast<size_t>(j)] * row[j] / std::sqrt(square + kEpsilon);
    }
  }
  return y;
}

class Norms : public ::testing::TestWithParam<int> {
 protected:
  std::unique_ptr<Ops> ops_ = CreateCpuOps(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Threads, Norms, ::testing::Values(1, 2));

TEST_P(Norms, LayerNormForwardMatchesDoubleLoops) {
  for (const Case& c : kCases) {
    const Doubles x = RandomValues(c.n * c.width, 1, 3), gain = RandomValues(c.width, 2);
    const Doubles bias = RandomValues(c.width, 3);
    Buffer fx(x), fg(gain), fb(bias), y(c.n * c.width), mean(c.n), rstd(c.n);
    ops_->LayerNorm(fx.data(), fg.data(), fb.data(), y.data(), mean.data(), rstd.data(), c.n,
                    c.width, static_cast<float>(kEpsilon));
    ExpectClose(y, LayerNormReference(x, gain, bias, c), kForwardBound, c.Name());
  }
}

// Σ(x − mean)² must not be Σx² − n·mean²: that loses everything here.
TEST_P(Norms, LayerNormKeepsItsPrecisionFarFromZero) {
  const Case c{3, 64};
  Doubles x = RandomValues(c.n * c.width, 1);
  for (double& v : x) v = static_cast<float>(v + 1000);
  const Doubles gain(64, 1.0), bias(64, 0.0);
  Buffer fx(x), fg(gain), fb(bias), y(c.n * c.width), mean(c.n), rstd(c.n);
  ops_->LayerNorm(fx.data(), fg.data(), fb.data(), y.data(), mean.data(), rstd.data(), c.n, c.width,
                  static_cast<float>(kEpsilon));
  // The mean itself is rounded to 1000 · 2^-24.
  ExpectClose(y, LayerNormReference(x, gain, bias, c), 3e-4, "mean 1000");
}

TEST_P(Norms, LayerNormBackwardMatchesFiniteDifferences) {
  for (const Case& c : kSmallCases) {
    const Doubles x = RandomValues(c.n * c.width, 1, 3), gain = RandomValues(c.width, 2);
    const Doubles bias = RandomValues(c.width, 3), dy = RandomValues(c.n * c.width, 4);
    Buffer fx(x), fg(gain), fb(bias), fdy(dy), y(c.n * c.width), mean(c.n), rstd(c.n);
    ops_->LayerNorm(fx.data(), fg.data(), fb.data(), y.data(), mean.data(), rstd.data(), c.n,
                    c.width, static_cast<float>(kEpsilon));
    const Doubles dgain0 = RandomValues(c.width, 5), dbias0 = RandomValues(c.width, 6);
    Buffer dx(c.n * c.width), dgain(dgain0), dbias(dbias0);
    ops_->LayerNormBackward(fdy.data(), fx.data(), fg.data(), mean.data(), rstd.data(), nullptr,
                            dx.data(), dgain.data(), dbias.data(), c.n, c.width);
    auto loss = [&](const Doubles& v, const Doubles& g, const Doubles& b) {
      return Dot(dy, LayerNormReference(v, g, b, c));
    };
    const Doubles want = NumericGradient([&](const Doubles& v) { return loss(v, gain, bias); }, x);
    ExpectClose(dx, want, kBackwardBound, "dx " + c.Name());
    ExpectClose(
        dgain,
        Plus(dgain0, NumericGradient([&](const Doubles& v) { return loss(x, v, bias); }, gain)),
        kBackwardBound, "dgain added " + c.Name());
    ExpectClose(
        dbias,
        Plus(dbias0, NumericGradient([&](const Doubles& v) { return loss(x, gain, v); }, bias)),
        kBackwardBound, "dbias added " + c.Name());
    const Doubles residual = RandomValues(c.n * c.width, 7);
    Buffer sum(residual), passed(residual);
    ops_->LayerNormBackward(fdy.data(), fx.data(), fg.data(), mean.data(), rstd.data(), sum.data(),
                            sum.data(), dgain.data(), dbias.data(), c.n, c.width);
    ExpectClose(sum, Plus(residual, want), kBackwardBound, "dx accumulated " + c.Name());
    ops_->LayerNormBackward(fdy.data(), fx.data(), fg.data(), mean.data(), rstd.data(),
                            passed.data(), dx.data(), dgain.data(), dbias.data(), c.n, c.width);
    ExpectClose(dx, Plus(residual, want), kBackwardBound, "dx with a residual " + c.Name());
  }
}

TEST_P(Norms, RmsNormForwardMatchesDoubleLoops) {
  for (const Case& c : kCases) {
    const Doubles x = RandomValues(c.n * c.width, 1, 3), gain = RandomValues(c.width, 2);
    Buffer fx(x), fg(gain), y(c.n * c.width), rstd(c.n);
    ops_->RmsNorm(fx.data(), fg.data(), y.data(), rstd.data(), c.n, c.width,
                  static_cast<float>(kEpsilon));
    ExpectClose(y, RmsNormReference(x, gain, c), kForwardBound, c.Name());
  }
}

TEST_P(Norms, RmsNormBackwardMatchesFiniteDifferences) {
  for (const Case& c : kSmallCases) {
    const Doubles x = RandomValues(c.n * c.width, 1, 3), gain = RandomValues(c.width, 2);
    const Doubles dy = RandomValues(c.n * c.width, 4), dgain0 = RandomValues(c.width, 5);
    Buffer fx(x), fg(gain), fdy(dy), y(c.n * c.width), rstd(c.n), dx(c.n * c.width), dgain(dgain0);
    ops_->RmsNorm(fx.data(), fg.data(), y.data(), rstd.data(), c.n, c.width,
                  static_cast<float>(kEpsilon));
    ops_->RmsNormBackward(fdy.data(), fx.data(), fg.data(), rstd.data(), nullptr, dx.data(),
                          dgain.data(), c.n, c.width);
    auto loss = [&](const Doubles& v, const Doubles& g) {
      return Dot(dy, RmsNormReference(v, g, c));
    };
    const Doubles want = NumericGradient([&](const Doubles& v) { return loss(v, gain); }, x);
    ExpectClose(dx, want, kBackwardBound, "dx " + c.Name());
    ExpectClose(dgain,
                Plus(dgain0, NumericGradient([&](const Doubles& v) { return loss(x, v); }, gain)),
                kBackwardBound, "dgain added " + c.Name());
    const Doubles residual = RandomValues(c.n * c.width, 7);
    Buffer sum(residual), passed(residual);
    ops_->RmsNormBackward(fdy.data(), fx.data(), fg.data(), rstd.data(), sum.data(), sum.data(),
                          dgain.data(), c.n, c.width);
    ExpectClose(sum, Plus(residual, want), kBackwardBound, "dx accumulated " + c.Name());
    ops_->RmsNormBackward(fdy.data(), fx.data(), fg.data(), rstd.data(), passed.data(), dx.data(),
                          dgain.data(), c.n, c.width);
    ExpectClose(dx, Plus(residual, want), kBackwardBound, "dx with a residual " + c.Name());
  }
}

TEST_P(Norms, SquaredNormMatchesALongDoubleSum) {
  for (int64_t count : {0, 1, 31, 33, 65535, 65536, 65537, 300007}) {
    const Doubles x = RandomValues(count, 1);
    Buffer fx(x);
    long double want = 0;
    for (double v : x) want += static_cast<long double>(v) * v;
    EXPECT_NEAR(SquaredNormOf(*ops_, fx.data(), count), static_cast<double>(want),
                1e-13 * static_cast<double>(want))
        << "count " << count;
  }
}

}  // namespace
}  // namespace headrace
