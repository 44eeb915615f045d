#include "worker/backend/ops_testing.h"

namespace headrace {
namespace {

struct Case {
  int64_t n, in, out;
  std::string Name() const {
    return "n=" + std::to_string(n) + " in=" + std::to_string(in) + " out=" + std::to_string(out);
  }
};

// 1, primes, and one off the tiles of 8, 16, 64.
const Case kCases[] = {{1, 1, 1},    {1, 7, 1},    {3, 1, 5},     {2, 16, 17},   {13, 31, 29},
                       {15, 17, 33}, {64, 64, 64}, {65, 63, 127}, {33, 129, 97}, {128, 48, 257}};

Doubles Product(const Doubles& x, const Doubles& w, const Doubles& bias, const Case& c) {
  Doubles y(static_cast<size_t>(c.n * c.out));
  for (int64_t t = 0; t < c.n; ++t) {
    for (int64_t o = 0; o < c.out; ++o) {
      double sum = bias.empty() ? 0 : bias[static_cast<size_t>(o)];
      for (int64_t i = 0; i < c.in; ++i) {
        sum += x[static_cast<size_t>(t * c.in + i)] * w[static_cast<size_t>(o * c.in + i)];
      }
      y[static_cast<size_t>(t * c.out + o)] = sum;
    }
  }
  return y;
}

// Rounding of a sum of up to 257 products.
constexpr double kBound = 2e-6;

class Linear : public ::testing::TestWithParam<int> {
 protected:
  std::unique_ptr<Ops> ops_ = CreateCpuOps(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Threads, Linear, ::testing::Values(1, 2));

TEST_P(Linear, ForwardMatchesDoubleLoops) {
  for (const Case& c : kCases) {
    const Doubles x = RandomValues(c.n * c.in, 1), w = RandomValues(c.out * c.in, 2);
    const Doubles bias = RandomValues(c.out, 3);
    Buffer fx(x), fw(w), fb(bias), y(c.n * c.out);
    ops_->Linear(fx.data(), fw.data(), fb.data(), y.data(), c.n, c.in, c.out);
    ExpectClose(y, Product(x, w, bias, c), kBound, "with bias " + c.Name());
    y.Set(NAN);
    ops_->Linear(fx.data(), fw.data(), nullptr, y.data(), c.n, c.in, c.out);
    ExpectClose(y, Product(x, w, {}, c), kBound, "no bias " + c.Name());
  }
}

// The output is linear in x and in w, so the differences are exact at any distance; small shapes.
TEST_P(Linear, BackwardMatchesFiniteDifferences) {
  for (const Case& c : {Case{1, 1, 1}, Case{3, 5, 2}, Case{7, 4, 9}, Case{5, 17, 3}}) {
    const Doubles x = RandomValues(c.n * c.in, 1), w = RandomValues(c.out * c.in, 2);
    const Doubles bias = RandomValues(c.out, 3), dy = RandomValues(c.n * c.out, 4);
    Buffer fx(x), fw(w), fdy(dy), dx(c.n * c.in);
    ops_->LinearBackwardInput(fdy.data(), fw.data(), dx.data(), c.n, c.in, c.out, false);
    const Doubles want_dx =
        NumericGradient([&](const Doubles& v) { return Dot(dy, Product(v, w, bias, c)); }, x);
    ExpectClose(dx, want_dx, kBound, "dx " + c.Name());
    ops_->LinearBackwardInput(fdy.data(), fw.data(), dx.data(), c.n, c.in, c.out, true);
    ExpectClose(dx, Plus(want_dx, want_dx), kBound, "dx accumulated " + c.Name());

    const Doubles dw0 = RandomValues(c.out * c.in, 5), db0 = RandomValues(c.out, 6);
    Buffer dw(dw0), db(db0);
    ops_->LinearBackwardWeight(fdy.data(), fx.data(), dw.data(), db.data(), c.n, c.in, c.out);
    const Doubles want_dw =
        NumericGradient([&](const Doubles& v) { return Dot(dy, Product(x, v, bias, c)); }, w);
    const Doubles want_db =
        NumericGradient([&](const Doubles& v) { return Dot(dy, Product(x, w, v, c)); }, bias);
    ExpectClose(dw, Plus(dw0, want_dw), kBound, "dw added " + c.Name());
    ExpectClose(db, Plus(db0, want_db), kBound, "dbias added " + c.Name());
  }
}

TEST_P(Linear, BackwardMatchesDoubleLoopsInLargeShapes) {
  for (const Case& c : kCases) {
    const Doubles x = RandomValues(c.n * c.in, 1), w = RandomValues(c.out * c.in, 2);
    const Doubles dy = RandomValues(c.n * c.out, 4);
    Doubles want_dx(x.size()), want_dw(w.size()), want_db(static_cast<size_t>(c.out));
    for (int64_t t = 0; t < c.n; ++t) {
      for (int64_t o = 0; o < c.out; ++o) {
        const double d = dy[static_cast<size_t>(t * c.out + o)];
        want_db[static_cast<size_t>(o)] += d;
        for (int64_t i = 0; i < c.in; ++i) {
          const auto xi = static_cast<size_t>(t * c.in + i), wi = static_cast<size_t>(o * c.in + i);
          want_dx[xi] += d * w[wi];
          want_dw[wi] += d * x[xi];
        }
      }
    }
    Buffer fx(x), fw(w), fdy(dy), dx(c.n * c.in), dw(c.out * c.in), db(c.out);
    dw.Set(0);
    db.Set(0);
    ops_->LinearBackwardInput(fdy.data(), fw.data(), dx.data(), c.n, c.in, c.out, false);
    ops_->LinearBackwardWeight(fdy.data(), fx.data(), dw.data(), db.data(), c.n, c.in, c.out);
    ExpectClose(dx, want_dx, kBound, "dx " + c.Name());
    ExpectClose(dw, want_dw, kBound, "dw " + c.Name());
    ExpectClose(db, want_db, kBound, "dbias " + c.Name());
    ops_->LinearBackwardWeight(fdy.data(), fx.data(), dw.data(), nullptr, c.n, c.in, c.out);
    ExpectClose(db, want_db, kBound, "dbias untouched " + c.Name());
  }
}

}  // namespace
}  // namespace headrace
