#include "worker/backend/attention_testing.h"
#include "worker/backend/ops_testing.h"

namespace headrace {
namespace {

// Scores are sums of `size` products, outputs sums of `length`.
constexpr double kForwardBound = 2e-6;
constexpr double kBackwardBound = 4e-6;

class Attention : public ::testing::TestWithParam<int> {
 protected:
  Buffer Workspace(const AttentionShape& s) {
    return Buffer(AttentionWorkspaceBytes(s, GetParam()) / 4);
  }
  std::unique_ptr<Ops> ops_ = CreateCpuOps(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Threads, Attention, ::testing::Values(1, 2));

TEST_P(Attention, ForwardMatchesDoubleLoops) {
  for (const AttentionShape& s : Shapes()) {
    const int64_t n = s.sequences * s.length;
    const Doubles qkv = RandomValues(n * Stride(s), 1, 2);
    Doubles want_lse(static_cast<size_t>(n * s.heads));
    const Doubles want = Reference(qkv, s, &want_lse);
    Buffer f(qkv), out(n * s.heads * s.size), lse(n * s.heads), workspace = Workspace(s);
    ops_->Attention(f.data(), out.data(), lse.data(), s, workspace.data());
    ExpectClose(out, want, kForwardBound, "out " + Name(s));
    ExpectClose(lse, want_lse, kForwardBound, "lse " + Name(s));
  }
}

TEST_P(Attention, BackwardMatchesFiniteDifferences) {
  for (const AttentionShape& s : Shapes()) {
    const int64_t n = s.sequences * s.length;
    if (n * Stride(s) > 1000) continue;  // one forward pass an element
    const Doubles qkv = RandomValues(n * Stride(s), 1, 2);
    const Doubles dout = RandomValues(n * s.heads * s.size, 2);
    Buffer f(qkv), fdout(dout), out(n * s.heads * s.size), lse(n * s.heads);
    Buffer d(n * Stride(s)), workspace = Workspace(s);
    ops_->Attention(f.data(), out.data(), lse.data(), s, workspace.data());
    ops_->AttentionBackward(fdout.data(), f.data(), out.data(), lse.data(), d.data(), s,
                            workspace.data());
    const Doubles want =
        NumericGradient([&](const Doubles& v) { return Dot(dout, Reference(v, s)); }, qkv);
    ExpectClose(d, want, kBackwardBound, Name(s));
  }
}

// Large shapes: the slope along a random direction, for several directions.
TEST_P(Attention, BackwardOfLargeShapesMatchesDirectionalDifferences) {
  for (const AttentionShape& s : Shapes()) {
    const int64_t n = s.sequences * s.length;
    const Doubles qkv = RandomValues(n * Stride(s), 1, 2);
    const Doubles dout = RandomValues(n * s.heads * s.size, 2);
    Buffer f(qkv), fdout(dout), out(n * s.heads * s.size), lse(n * s.heads);
    Buffer d(n * Stride(s)), workspace = Workspace(s);
    ops_->Attention(f.data(), out.data(), lse.data(), s, workspace.data());
    ops_->AttentionBackward(fdout.data(), f.data(), out.data(), lse.data(), d.data(), s,
                            workspace.data());
    const Doubles gradient = d.doubles();
    const double norm = std::sqrt(Dot(gradient, gradient));
    for (uint32_t seed = 10; seed < 14; ++seed) {
      const Doubles direction = RandomValues(n * Stride(s), seed);
      auto loss = [&](double h) {
        Doubles moved = qkv;
        for (size_t i = 0; i < moved.size(); ++i) moved[i] += h * direction[i];
        return Dot(dout, Reference(moved, s));
      };
      const double slope = (loss(1e-5) - loss(-1e-5)) / 2e-5;
      EXPECT_NEAR(Dot(gradient, direction), slope, 5e-6 * norm + 1e-6) << Name(s);
    }
  }
}

TEST_P(Attention, TheFutureHasNoInfluence) {
  const AttentionShape s = Shape(1, 70, 2, 2, 8);
  const int64_t prefix = 66;
  Doubles qkv = RandomValues(s.length * Stride(s), 1);
  Buffer f(qkv), out(s.length * 16), lse(s.length * 2), workspace = Workspace(s);
  ops_->Attention(f.data(), out.data(), lse.data(), s, workspace.data());
  for (size_t i = static_cast<size_t>(prefix * Stride(s)); i < qkv.size(); ++i) qkv[i] = 1000;
  Buffer g(qkv), changed(s.length * 16);
  ops_->Attention(g.data(), changed.data(), lse.data(), s, workspace.data());
  EXPECT_EQ(std::memcmp(out.data(), changed.data(), static_cast<size_t>(prefix * 16) * 4), 0);
}

TEST_P(Attention, NaNInOneQueryReachesItsRowOnly) {
  const AttentionShape s = Shape(1, 9, 1, 1, 4);
  Doubles qkv = RandomValues(s.length * Stride(s), 1);
  qkv[static_cast<size_t>(3 * Stride(s))] = NAN;
  Buffer f(qkv), out(s.length * 4), lse(s.length), workspace = Workspace(s);
  ops_->Attention(f.data(), out.data(), lse.data(), s, workspace.data());
  EXPECT_TRUE(std::isnan(out[3 * 4]));
  EXPECT_TRUE(std::isnan(lse[3]));
  EXPECT_FALSE(std::isnan(out[4 * 4]));
}

TEST_P(Attention, RopeRotatesHalfSplitPairsAndItsInverseUndoesIt) {
  const AttentionShape s = Shape(2, 5, 3, 1, 6);
  const int64_t half = 3, n = 10;
  const double theta = 10000;
  Buffer cos(s.length * half), sin(s.length * half);
  ops_->RopeTable(cos.data(), sin.data(), s.length, s.size, theta);
  const Doubles qkv = RandomValues(n * Stride(s), 1);
  Doubles want = qkv;
  for (int64_t t = 0; t < n; ++t) {
    for (int64_t h = 0; h < s.heads + s.kv_heads; ++h) {
      for (int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(t % s.length) *
                             std::pow(theta, -2.0 * static_cast<double>(i) / 6.0);
        const auto low = static_cast<size_t>(t * Stride(s) + h * s.size + i);
        want[low] = qkv[low] * std::cos(angle) - qkv[low + 3] * std::sin(angle);
        want[low + 3] = qkv[low + 3] * std::cos(angle) + qkv[low] * std::sin(angle);
      }
    }
  }
  Buffer f(qkv);
  ops_->Rope(f.data(), cos.data(), sin.data(), s, false);
  ExpectClose(f, want, 5e-7, "rotated");
  // The rotation is orthogonal: its transpose, which the gradient needs, is its inverse.
  ops_->Rope(f.data(), cos.data(), sin.data(), s, true);
  ExpectClose(f, qkv, 5e-7, "rotated back");
}

}  // namespace
}  // namespace headrace
