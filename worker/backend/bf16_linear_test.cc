// The linear layers with bf16 products, by the processor's instructions and emulated.
#include <cmath>
#include <cstring>
#include <tuple>

#include "worker/backend/bf16_testing.h"
#include "worker/backend/ops_testing.h"

namespace headrace {
namespace {

struct Case {
  int64_t n, in, out;
  std::string Name() const {
    return "n=" + std::to_string(n) + " in=" + std::to_string(in) + " out=" + std::to_string(out);
  }
};

// 1, primes, one off the tiles (14 × 32 numbers, 2 deep), and more than a panel (224 rows, 1024
// columns, 768 deep) in each direction.
const Case kCases[] = {{1, 1, 1},     {1, 7, 1},     {3, 1, 5},     {13, 31, 29},  {14, 16, 32},
                       {15, 17, 33},  {29, 63, 65},  {33, 129, 97}, {227, 33, 3},  {2, 5, 1031},
                       {3, 1541, 17}, {5, 21, 1541}, {1541, 9, 13}, {1031, 3, 227}};

// fp32 sums of products of bf16 numbers, which are exact in fp32: what is lost is the rounding of
// up to 1541 additions, at random some 20 · 2^-24 of a result of typical size.
constexpr double kBound = 4e-6;

// c[m, n] = op(a) · op(b) of matrices whose elements lie (row, column) · steps apart.
struct Steps {
  int64_t row, column;
};
Doubles Product(const Doubles& a, Steps sa, const Doubles& b, Steps sb, int64_t m, int64_t n,
                int64_t k) {
  Doubles c(static_cast<size_t>(m * n));
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < k; ++l) {
        sum += a[static_cast<size_t>(i * sa.row + l * sa.column)] *
               b[static_cast<size_t>(l * sb.row + j * sb.column)];
      }
      c[static_cast<size_t>(i * n + j)] = sum;
    }
  }
  return c;
}

class Bf16Linear : public ::testing::TestWithParam<std::tuple<Precision, int>> {
 protected:
  void SetUp() override {
    if (std::get<0>(GetParam()) == Precision::kBf16 && !CpuMultipliesBf16()) {
      GTEST_SKIP() << "this processor has no avx512_bf16";
    }
    ops_ = std::make_unique<Bf16Ops>(std::get<0>(GetParam()), std::get<1>(GetParam()));
  }
  Ops* ops() { return ops_->operator->(); }

  std::unique_ptr<Bf16Ops> ops_;
};
INSTANTIATE_TEST_SUITE_P(Hardware, Bf16Linear,
                         ::testing::Combine(::testing::Values(Precision::kBf16),
                                            ::testing::Values(1, 2)));
INSTANTIATE_TEST_SUITE_P(Emulated, Bf16Linear,
                         ::testing::Combine(::testing::Values(Precision::kBf16Emulated),
                                            ::testing::Values(1, 2)));

TEST_P(Bf16Linear, ForwardMatchesDoubleLoopsOverRoundedInputs) {
  for (const Case& c : kCases) {
    const Doubles x = RandomValues(c.n * c.in, 1), w = RandomValues(c.out * c.in, 2);
    const Doubles bias = RandomValues(c.out, 3);
    const Doubles want = Product(Rounded(x), {c.in, 1}, Rounded(w), {1, c.in}, c.n, c.out, c.in);
    Doubles with_bias = want;
    for (size_t i = 0; i < want.size(); ++i) with_bias[i] += bias[i % bias.size()];
    Buffer fx(x), fw(w), fb(bias), y(c.n * c.out);
    ops()->Linear(fx.data(), fw.data(), nullptr, y.data(), c.n, c.in, c.out);
    ExpectClose(y, want, kBound, "no bias " + c.Name());
    ops()->Linear(fx.data(), fw.data(), fb.data(), y.data(), c.n, c.in, c.out);
    ExpectClose(y, with_bias, kBound, "with bias " + c.Name());
  }
}

TEST_P(Bf16Linear, BackwardMatchesDoubleLoopsOverRoundedInputs) {
  for (const Case& c : kCases) {
    const Doubles x = RandomValues(c.n * c.in, 1), w = RandomValues(c.out * c.in, 2);
    const Doubles dy = RandomValues(c.n * c.out, 4);
    const Doubles dw0 = RandomValues(c.out * c.in, 5), db0 = RandomValues(c.out, 6);
    const Doubles want_dx =
        Product(Rounded(dy), {c.out, 1}, Rounded(w), {c.in, 1}, c.n, c.in, c.out);
    const Doubles want_dw =
        Product(Rounded(dy), {1, c.out}, Rounded(x), {c.in, 1}, c.out, c.in, c.n);
    Doubles want_db = db0;  // of what was not rounded
    for (size_t i = 0; i < dy.size(); ++i) want_db[i % db0.size()] += dy[i];
    Buffer fx(x), fw(w), fdy(dy), dx(c.n * c.in), dw(dw0), db(db0);
    ops()->LinearBackwardInput(fdy.data(), fw.data(), dx.data(), c.n, c.in, c.out, false);
    ExpectClose(dx, want_dx, kBound, "dx " + c.Name());
    ops()->LinearBackwardInput(fdy.data(), fw.data(), dx.data(), c.n, c.in, c.out, true);
    ExpectClose(dx, Plus(want_dx, want_dx), kBound, "dx accumulated " + c.Name());
    ops()->LinearBackwardWeight(fdy.data(), fx.data(), dw.data(), db.data(), c.n, c.in, c.out);
    ExpectClose(dw, Plus(dw0, want_dw), kBound, "dw added " + c.Name());
    ExpectClose(db, want_db, kBound, "dbias added " + c.Name());
  }
}

// What numerics.md promises of bf16 alone: other rows, other columns and other threads change no
// bit.
TEST_P(Bf16Linear, AnElementDoesNotDependOnItsNeighbours) {
  constexpr int64_t kN = 230, kIn = 801, kOut = 1050;
  Buffer x(RandomValues(kN * kIn, 1)), w(RandomValues(kOut * kIn, 2)), y(kN * kOut);
  ops()->Linear(x.data(), w.data(), nullptr, y.data(), kN, kIn, kOut);
  Bf16Ops alone(std::get<0>(GetParam()), 1);
  for (const auto& [row, column] : {std::pair<int64_t, int64_t>{0, 0}, {13, 31}, {229, 1049}}) {
    Buffer one(1);
    alone->Linear(x.data() + row * kIn, w.data() + column * kIn, nullptr, one.data(), 1, kIn, 1);
    EXPECT_EQ(one[0], y[row * kOut + column]) << row << ", " << column;
  }
  CreateCpuOps(std::get<1>(GetParam()));  // threads as they were
}

TEST_P(Bf16Linear, NanAndInfinityStayInTheirRows) {
  constexpr int64_t kN = 16, kIn = 33, kOut = 40;
  Buffer x(RandomValues(kN * kIn, 1)), w(RandomValues(kOut * kIn, 2)), y(kN * kOut);
  x.data()[3 * kIn + 32] = NAN;
  x.data()[15 * kIn] = 3.4e38f;  // rounds to infinity
  ops()->Linear(x.data(), w.data(), nullptr, y.data(), kN, kIn, kOut);
  for (int64_t i = 0; i < kN * kOut; ++i) {
    EXPECT_EQ(std::isnan(y[i]), i / kOut == 3) << i;
    EXPECT_EQ(std::isinf(y[i]), i / kOut == 15) << i;
  }
}

TEST(Bf16LinearTest, EmulationGivesTheProcessorsBits) {
  if (!CpuMultipliesBf16()) GTEST_SKIP() << "this processor has no avx512_bf16";
  Bf16Ops hardware(Precision::kBf16, 1), emulated(Precision::kBf16Emulated, 1);
  for (const Case& c : kCases) {
    Buffer x(RandomValues(c.n * c.in, 1)), w(RandomValues(c.out * c.in, 2));
    Buffer one(c.n * c.out), other(c.n * c.out);
    hardware->Linear(x.data(), w.data(), nullptr, one.data(), c.n, c.in, c.out);
    emulated->Linear(x.data(), w.data(), nullptr, other.data(), c.n, c.in, c.out);
    EXPECT_EQ(std::memcmp(one.data(), other.data(), static_cast<size_t>(4 * c.n * c.out)), 0)
        << c.Name();
  }
}

}  // namespace
}  // namespace headrace
