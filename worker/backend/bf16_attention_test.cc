// Attention with bf16 products, by the processor's instructions and emulated.
#include <cmath>
#include <cstring>
#include <tuple>

#include "worker/backend/attention_testing.h"
#include "worker/backend/bf16_testing.h"
#include "worker/backend/ops_testing.h"

namespace headrace {
namespace {

// Scores of rounded numbers are exact but for fp32 sums. Probabilities are rounded to 2^-9 of
// themselves before they weigh values, as are the gradients of scores before they weigh queries and
// keys: errors of 2^-9 of terms that partly cancel.
constexpr double kScoreBound = 4e-6, kForwardBound = 8e-3, kBackwardBound = 3e-2;
// Of the gradient's norm, along a random direction.
constexpr double kSlopeBound = 2e-2;

// The awkward shapes of fp32, and one off bf16's tiles (14 rows, 32 columns, pairs).
std::vector<AttentionShape> Bf16Shapes() {
  std::vector<AttentionShape> shapes = Shapes();
  shapes.push_back(Shape(1, 33, 2, 1, 3));
  shapes.push_back(Shape(1, 97, 1, 1, 65));
  shapes.push_back(Shape(1, 43, 2, 1, 29, 0.2f));
  return shapes;
}

struct Results {
  Buffer out, lse, dqkv;
};

Results BothPasses(Bf16Ops& ops, int threads, const AttentionShape& s, const Doubles& qkv,
                   const Doubles& dout) {
  const int64_t n = s.sequences * s.length;
  Results r{Buffer(n * s.heads * s.size), Buffer(n * s.heads), Buffer(n * Stride(s))};
  Buffer in(qkv), gradient(dout), workspace(AttentionWorkspaceBytes(s, threads) / 4);
  ops->Attention(in.data(), r.out.data(), r.lse.data(), s, workspace.data());
  workspace.Set(NAN);
  ops->AttentionBackward(gradient.data(), in.data(), r.out.data(), r.lse.data(), r.dqkv.data(), s,
                         workspace.data());
  return r;
}

Doubles Qkv(const AttentionShape& s) {
  return RandomValues(s.sequences * s.length * Stride(s), 1, 2);
}
Doubles Dout(const AttentionShape& s) {
  return RandomValues(s.sequences * s.length * s.heads * s.size, 2);
}

void ExpectSameBits(Buffer& a, Buffer& b, const std::string& what) {
  ASSERT_EQ(a.count(), b.count());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), static_cast<size_t>(4 * a.count())), 0) << what;
}
void ExpectSameBits(Results a, Results b, const std::string& what) {
  ExpectSameBits(a.out, b.out, "out " + what);
  ExpectSameBits(a.lse, b.lse, "lse " + what);
  ExpectSameBits(a.dqkv, b.dqkv, "dqkv " + what);
}

class Bf16Attention : public ::testing::TestWithParam<std::tuple<Precision, int>> {
 protected:
  void SetUp() override {
    if (std::get<0>(GetParam()) == Precision::kBf16 && !CpuMultipliesBf16()) {
      GTEST_SKIP() << "this processor has no avx512_bf16";
    }
    ops_ = std::make_unique<Bf16Ops>(std::get<0>(GetParam()), threads());
  }
  int threads() const { return std::get<1>(GetParam()); }
  Results Run(const AttentionShape& s, const Doubles& qkv, const Doubles& dout) {
    return BothPasses(*ops_, threads(), s, qkv, dout);
  }

  std::unique_ptr<Bf16Ops> ops_;
};
INSTANTIATE_TEST_SUITE_P(Hardware, Bf16Attention,
                         ::testing::Combine(::testing::Values(Precision::kBf16),
                                            ::testing::Values(1, 2)));
INSTANTIATE_TEST_SUITE_P(Emulated, Bf16Attention,
                         ::testing::Combine(::testing::Values(Precision::kBf16Emulated),
                                            ::testing::Values(1, 2)));

TEST_P(Bf16Attention, ForwardMatchesDoubleLoopsOverRoundedInputs) {
  for (const AttentionShape& s : Bf16Shapes()) {
    Doubles lse(static_cast<size_t>(s.sequences * s.length * s.heads));
    const Doubles out = Reference(Rounded(Qkv(s)), s, &lse);
    const Results r = Run(s, Qkv(s), Dout(s));
    ExpectClose(r.out, out, kForwardBound, "out " + Name(s));
    ExpectClose(r.lse, lse, kScoreBound, "lse " + Name(s));
  }
}

TEST_P(Bf16Attention, BackwardMatchesFiniteDifferencesOverRoundedInputs) {
  for (const AttentionShape& s : Bf16Shapes()) {
    if (s.sequences * s.length * Stride(s) > 2000) continue;  // one forward pass an element
    const Doubles dout = Rounded(Dout(s));
    const Results r = Run(s, Qkv(s), Dout(s));
    const Doubles want = NumericGradient(
        [&](const Doubles& v) { return Dot(dout, Reference(v, s)); }, Rounded(Qkv(s)));
    ExpectClose(r.dqkv, want, kBackwardBound, Name(s));
  }
}

// Large shapes: the slope along a random direction, for several directions.
TEST_P(Bf16Attention, BackwardOfLargeShapesMatchesDirectionalDifferences) {
  for (const AttentionShape& s : Bf16Shapes()) {
    const Doubles qkv = Rounded(Qkv(s)), dout = Rounded(Dout(s));
    const Results r = Run(s, Qkv(s), Dout(s));
    const Doubles gradient = r.dqkv.doubles();
    const double norm = std::sqrt(Dot(gradient, gradient));
    for (uint32_t seed = 10; seed < 14; ++seed) {
      const Doubles direction = RandomValues(static_cast<int64_t>(qkv.size()), seed);
      auto loss = [&](double h) {
        Doubles moved = qkv;
        for (size_t i = 0; i < moved.size(); ++i) moved[i] += h * direction[i];
        return Dot(dout, Reference(moved, s));
      };
      const double slope = (loss(1e-5) - loss(-1e-5)) / 2e-5;
      EXPECT_NEAR(Dot(gradient, direction), slope, kSlopeBound * norm + 1e-6) << Name(s);
    }
  }
}

// q, k and v are rounded, once: numbers that bf16 has already give the same bits.
TEST_P(Bf16Attention, InputsAreRounded) {
  for (const AttentionShape& s : Bf16Shapes()) {
    Results exact = Run(s, Qkv(s), Rounded(Dout(s)));
    Results rounded = Run(s, Rounded(Qkv(s)), Rounded(Dout(s)));
    ExpectSameBits(std::move(exact), std::move(rounded), Name(s));
  }
}

TEST_P(Bf16Attention, ThreadsDoNotMatter) {
  Bf16Ops one(std::get<0>(GetParam()), 1);
  for (const AttentionShape& s : Bf16Shapes()) {
    Results alone = BothPasses(one, 1, s, Qkv(s), Dout(s));
    CreateCpuOps(threads());  // threads as they were
    ExpectSameBits(Run(s, Qkv(s), Dout(s)), std::move(alone), Name(s));
  }
}

TEST_P(Bf16Attention, TheFutureHasNoInfluence) {
  const AttentionShape s = Shape(1, 70, 2, 2, 8);
  const int64_t prefix = 66;
  Doubles qkv = RandomValues(s.length * Stride(s), 1);
  const Results r = Run(s, qkv, Dout(s));
  for (size_t i = static_cast<size_t>(prefix * Stride(s)); i < qkv.size(); ++i) qkv[i] = 1000;
  const Results changed = Run(s, qkv, Dout(s));
  for (int64_t i = 0; i < prefix * 16; ++i) EXPECT_EQ(r.out[i], changed.out[i]) << i;
}

TEST_P(Bf16Attention, NaNInOneQueryReachesItsRowOnly) {
  const AttentionShape s = Shape(1, 9, 1, 1, 4);
  Doubles qkv = RandomValues(s.length * Stride(s), 1);
  qkv[static_cast<size_t>(3 * Stride(s))] = NAN;
  const Results r = Run(s, qkv, Dout(s));
  EXPECT_TRUE(std::isnan(r.out[3 * 4]));
  EXPECT_TRUE(std::isnan(r.lse[3]));
  EXPECT_FALSE(std::isnan(r.out[4 * 4]));
}

TEST(Bf16AttentionTest, EmulationGivesTheProcessorsBits) {
  if (!CpuMultipliesBf16()) GTEST_SKIP() << "this processor has no avx512_bf16";
  Bf16Ops hardware(Precision::kBf16, 1), emulated(Precision::kBf16Emulated, 1);
  for (const AttentionShape& s : Bf16Shapes()) {
    ExpectSameBits(BothPasses(hardware, 1, s, Qkv(s), Dout(s)),
                   BothPasses(emulated, 1, s, Qkv(s), Dout(s)), Name(s));
  }
}

}  // namespace
}  // namespace headrace
