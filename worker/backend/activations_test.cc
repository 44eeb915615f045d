#include <cstring>

#include "worker/backend/ops_testing.h"

namespace headrace {
namespace {

double GeluReference(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
double SiluReference(double x) { return x / (1 + std::exp(-x)); }

// Values around zero, in the bend, and far out where the sigmoid is flat.
Doubles Sweep(int64_t count) {
  Doubles x = RandomValues(count, 1, 4);
  const Doubles special = {0.0,  -0.0, 1e-20, -1e-20, 1e-3, -1e-3, 9.9,
                           -9.9, 10.1, -10.1, 60,     -60,  1e4,   -1e4};
  for (size_t i = 0; i < special.size() && i < x.size(); ++i) x[i] = static_cast<float>(special[i]);
  return x;
}

class Activations : public ::testing::TestWithParam<int> {
 protected:
  std::unique_ptr<Ops> ops_ = CreateCpuOps(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Threads, Activations, ::testing::Values(1, 2));

TEST_P(Activations, GeluIsWithinFourParts1e7OfTheDouble) {
  for (int64_t count : {1, 13, 16, 17, 4097, 10007}) {
    const Doubles x = Sweep(count);
    Buffer fx(x), y(count);
    ops_->Gelu(fx.data(), y.data(), count);
    for (int64_t i = 0; i < count; ++i) {
      const double v = x[static_cast<size_t>(i)], want = GeluReference(v);
      // Absolute below 1: the double's own tanh loses its relative precision for negative x.
      ASSERT_NEAR(y[i], want, 4e-7 * std::max(std::abs(want), std::min(1.0, std::abs(v))))
          << "gelu(" << v << ")";
    }
  }
}

TEST_P(Activations, GeluBackwardMatchesFiniteDifferences) {
  for (int64_t count : {1, 13, 17, 4097}) {
    const Doubles x = Sweep(count), dy = RandomValues(count, 2);
    Buffer fx(x), fdy(dy), dx(count);
    ops_->GeluBackward(fdy.data(), fx.data(), dx.data(), count);
    for (int64_t i = 0; i < count; ++i) {
      const double v = x[static_cast<size_t>(i)], d = dy[static_cast<size_t>(i)];
      const double h = 1e-5 * std::max(1.0, std::abs(v));
      const double want = d * (GeluReference(v + h) - GeluReference(v - h)) / (2 * h);
      ASSERT_NEAR(dx[i], want, 1e-6 * std::abs(d)) << "gelu'(" << v << ")";
    }
  }
}

TEST_P(Activations, GeluOfLargeNumbersIsTheIdentityOrZero) {
  const Doubles x = {3e38, 1e20, -1e20, 1e30, -1e10};
  Buffer fx(x), one(Doubles(5, 1.0)), y(5), dx(5);
  ops_->Gelu(fx.data(), y.data(), 5);
  ops_->GeluBackward(one.data(), fx.data(), dx.data(), 5);
  for (int64_t i = 0; i < 5; ++i) {
    const double v = fx[i];
    EXPECT_NEAR(y[i], std::max(v, 0.0), std::abs(v) * 1e-30) << v;
    EXPECT_NEAR(dx[i], v > 0 ? 1 : 0, 1e-30) << v;
  }
}

TEST_P(Activations, SwiGluMatchesDoubleLoopsAndFiniteDifferences) {
  struct Case {
    int64_t n, width;
  };
  for (const Case& c : {Case{1, 1}, Case{3, 7}, Case{2, 16}, Case{5, 17}, Case{7, 65}}) {
    const std::string name = "n=" + std::to_string(c.n) + " width=" + std::to_string(c.width);
    const Doubles gate_up = RandomValues(2 * c.n * c.width, 1, 6),
                  dy = RandomValues(c.n * c.width, 2);
    auto forward = [&](const Doubles& v) {
      Doubles y(static_cast<size_t>(c.n * c.width));
      for (int64_t t = 0; t < c.n; ++t) {
        for (int64_t j = 0; j < c.width; ++j) {
          y[static_cast<size_t>(t * c.width + j)] =
              SiluReference(v[static_cast<size_t>(2 * t * c.width + j)]) *
              v[static_cast<size_t>((2 * t + 1) * c.width + j)];
        }
      }
      return y;
    };
    Buffer f(gate_up), fdy(dy), y(c.n * c.width), d(2 * c.n * c.width);
    ops_->SwiGlu(f.data(), y.data(), c.n, c.width);
    ExpectClose(y, forward(gate_up), 1e-6, name);
    ops_->SwiGluBackward(fdy.data(), f.data(), d.data(), c.n, c.width);
    const Doubles want =
        NumericGradient([&](const Doubles& v) { return Dot(dy, forward(v)); }, gate_up);
    ExpectClose(d, want, 1e-6, "gradient " + name);
  }
}

TEST_P(Activations, NaNGoesThrough) {
  Buffer x(Doubles{1, NAN, 2, 3}), y(4), dy(Doubles(4, 1.0)), dx(4), half(2);
  ops_->Gelu(x.data(), y.data(), 4);
  EXPECT_TRUE(std::isnan(y[1]));
  EXPECT_FALSE(std::isnan(y[2]));
  ops_->GeluBackward(dy.data(), x.data(), dx.data(), 4);
  EXPECT_TRUE(std::isnan(dx[1]));
  ops_->SwiGlu(x.data(), half.data(), 1, 2);
  EXPECT_FALSE(std::isnan(half[0]));
  EXPECT_TRUE(std::isnan(half[1]));
  ops_->SwiGluBackward(dy.data(), x.data(), dx.data(), 1, 2);
  EXPECT_TRUE(std::isnan(dx[1]) && std::isnan(dx[3]));
}

TEST_P(Activations, AddMayWriteOverEitherInput) {
  for (int64_t count : {1, 17, 9001}) {
    const Doubles a = RandomValues(count, 1), b = RandomValues(count, 2);
    Buffer fa(a), fb(b);
    ops_->Add(fa.data(), fb.data(), fa.data(), count);
    ExpectClose(fa, Plus(a, b), 1e-7, "y is a");
    Buffer again(a);
    ops_->Add(again.data(), fb.data(), fb.data(), count);
    ExpectClose(fb, Plus(a, b), 1e-7, "y is b");
  }
}

TEST_P(Activations, FillAndZeroSetEveryElementAndNoOther) {
  for (int64_t count : {1, 17, 9001}) {
    Buffer x(count);
    ops_->Fill(x.data(), count, 2.5f);
    ExpectClose(x, Doubles(static_cast<size_t>(count), 2.5), 0, "fill");
    ops_->Zero(x.data(), count);
    ExpectClose(x, Doubles(static_cast<size_t>(count), 0.0), 0, "zero");
  }
}

TEST_P(Activations, CopyKeepsEveryBitOfEveryElement) {
  for (int64_t count : {1, 17, 9001}) {
    Buffer x(RandomValues(count, 1));
    Buffer y(count);
    ops_->Copy(x.data(), y.data(), count);
    EXPECT_EQ(std::memcmp(y.data(), x.data(), static_cast<size_t>(count) * sizeof(float)), 0);
  }
}

}  // namespace
}  // namespace headrace
