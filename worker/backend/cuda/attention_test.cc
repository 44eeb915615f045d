#include "worker/backend/cuda/attention.h"

#include "worker/backend/cuda/kernels.h"
#include "worker/backend/cuda/kernels_testing.h"

namespace headrace::cuda {
namespace {

template <typename T>
class AttentionKernels : public ::testing::Test {};
TYPED_TEST_SUITE(AttentionKernels, ActivationTypes);

AttentionShape Shape(int64_t sequences, int64_t length, int64_t heads, int64_t kv_heads,
                     int64_t size, float dropout = 0) {
  AttentionShape shape{sequences, length, heads, kv_heads, size, dropout, {}};
  shape.mask = MakeStream(11, RandomPurpose::kDropout, 1, 2, 3);
  return shape;
}

// One, primes, a tile of 64 rows ± 1; grouped queries; dropout; each head size once.
template <typename T>
std::vector<AttentionShape> Shapes() {
  if (sizeof(T) == 2) {
    return {Shape(1, 1, 1, 1, 64),  Shape(2, 7, 2, 1, 32),   Shape(1, 63, 1, 1, 96),
            Shape(1, 65, 2, 1, 64), Shape(1, 17, 1, 1, 128), Shape(1, 67, 1, 1, 32, 0.3f),
            Shape(1, 130, 1, 1, 32)};
  }
  return {Shape(1, 1, 1, 1, 1),   Shape(2, 7, 3, 3, 5),    Shape(1, 33, 2, 1, 64),
          Shape(1, 15, 2, 1, 96), Shape(1, 17, 1, 1, 128), Shape(1, 37, 2, 1, 8, 0.3f)};
}

std::string Name(const AttentionShape& s) {
  return std::to_string(s.sequences) + "x" + std::to_string(s.length) + " heads " +
         std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + " size " +
         std::to_string(s.size) + " dropout " + std::to_string(s.dropout);
}

size_t Stride(const AttentionShape& s) {
  return static_cast<size_t>((s.heads + 2 * s.kv_heads) * s.size);
}

double Mask(const AttentionShape& s, int64_t sequence, int64_t head, int64_t i, int64_t j) {
  if (s.dropout == 0) return 1;
  const int64_t row = (sequence * s.heads + head) * s.length + i;
  const int64_t block = row * ((s.length + 3) / 4) + j / 4;
  const uint32_t bits = s.mask.Block(static_cast<uint32_t>(block))[static_cast<size_t>(j % 4)];
  return UniformFloat(bits) < s.dropout ? 0 : 1 / (1 - static_cast<double>(s.dropout));
}

struct Expected {
  Doubles out, lse, dqkv;
};

// One row of one head from the formulas, forward and backward.
void AddRow(const Doubles& qkv, const Doubles& dout, const AttentionShape& s, int64_t b, int64_t h,
            int64_t i, Expected* e) {
  const auto size = static_cast<size_t>(s.size);
  const int64_t kv = h / (s.heads / s.kv_heads);
  const auto row = [&](int64_t t) { return static_cast<size_t>(b * s.length + t) * Stride(s); };
  const size_t q = row(i) + static_cast<size_t>(h * s.size);
  const auto k = [&](int64_t j) { return row(j) + static_cast<size_t>((s.heads + kv) * s.size); };
  const auto v = [&](int64_t j) { return k(j) + static_cast<size_t>(s.kv_heads * s.size); };
  const size_t o = static_cast<size_t>(((b * s.length + i) * s.heads + h) * s.size);
  const double scale = 1 / std::sqrt(static_cast<double>(s.size));
  Doubles p, masked, dp;
  double sum = 0, delta = 0;
  for (int64_t j = 0; j <= i; ++j) {
    double dot = 0;
    for (size_t d = 0; d < size; ++d) dot += qkv[q + d] * qkv[k(j) + d];
    p.push_back(std::exp(dot * scale));
    sum += p.back();
  }
  e->lse[static_cast<size_t>((b * s.heads + h) * s.length + i)] = std::log(sum);
  for (int64_t j = 0; j <= i; ++j) {
    p[static_cast<size_t>(j)] /= sum;
    masked.push_back(p[static_cast<size_t>(j)] * Mask(s, b, h, i, j));
    dp.push_back(0);
    for (size_t d = 0; d < size; ++d) {
      e->out[o + d] += masked.back() * qkv[v(j) + d];
      e->dqkv[v(j) + d] += masked.back() * dout[o + d];
      dp.back() += dout[o + d] * qkv[v(j) + d];
    }
    delta += masked.back() * dp.back();
  }
  for (int64_t j = 0; j <= i; ++j) {
    const auto at = static_cast<size_t>(j);
    const double ds = (masked[at] * dp[at] - p[at] * delta) * scale;
    for (size_t d = 0; d < size; ++d) {
      e->dqkv[q + d] += ds * qkv[k(j) + d];
      e->dqkv[k(j) + d] += ds * qkv[q + d];
    }
  }
}

Expected Reference(const Doubles& qkv, const Doubles& dout, const AttentionShape& s) {
  Expected e{Doubles(dout.size()), Doubles(static_cast<size_t>(s.sequences * s.heads * s.length)),
             Doubles(qkv.size())};
  for (int64_t b = 0; b < s.sequences; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) {
      for (int64_t i = 0; i < s.length; ++i) AddRow(qkv, dout, s, b, h, i, &e);
    }
  }
  return e;
}

TYPED_TEST(AttentionKernels, MatchDoubleLoopsForwardAndBackward) {
  using T = TypeParam;
  // bfloat16: probabilities and dS are rounded before the second product, the output before delta.
  const double forward = sizeof(T) == 4 ? 3e-6 : 1.2e-2, backward = sizeof(T) == 4 ? 1e-5 : 3e-2;
  for (const AttentionShape& s : Shapes<T>()) {
    const int64_t n = s.sequences * s.length;
    Doubles qkv = RandomValues(n * static_cast<int64_t>(Stride(s)), 1, 1.5);
    Doubles dout = RandomValues(n * s.heads * s.size, 2);
    const auto shift = s.length % 2 == 0 ? 0 : 1;  // an address of no alignment, for odd lengths
    OnDevice<T> dqkv_in(qkv, shift), ddout(dout, shift), out(n * s.heads * s.size, shift);
    OnDevice<T> dqkv(n * static_cast<int64_t>(Stride(s)), shift);
    OnDevice<float> lse(n * s.heads), delta(n * s.heads);
    EXPECT_CUDA_OK(Attention<T>(dqkv_in.get(), out.get(), lse.get(), s, nullptr));
    EXPECT_CUDA_OK(AttentionBackward<T>(ddout.get(), dqkv_in.get(), out.get(), lse.get(),
                                        dqkv.get(), delta.get(), s, nullptr));
    const Expected want = Reference(qkv, dout, s);
    ExpectClose(out.doubles(), want.out, forward, "out " + Name(s));
    ExpectClose(lse.doubles(), want.lse, 1e-5, "lse " + Name(s));
    ExpectClose(dqkv.doubles(), want.dqkv, backward, "dqkv " + Name(s));
  }
}

TYPED_TEST(AttentionKernels, GiveTheSameBitsTwiceAndAtAnyAddress) {
  using T = TypeParam;
  const AttentionShape s = Shape(1, 37, 2, 1, 32);
  const int64_t width = static_cast<int64_t>(Stride(s));
  std::vector<std::vector<T>> results;
  for (int shift : {0, 0, 1}) {
    Doubles qkv = RandomValues(s.length * width, 1, 2), dout = RandomValues(s.length * 64, 2);
    OnDevice<T> in(qkv, shift), ddout(dout, shift), out(s.length * 64), d(s.length * width, shift);
    OnDevice<float> lse(s.length * 2), delta(s.length * 2);
    EXPECT_CUDA_OK(Attention<T>(in.get(), out.get(), lse.get(), s, nullptr));
    EXPECT_CUDA_OK(AttentionBackward<T>(ddout.get(), in.get(), out.get(), lse.get(), d.get(),
                                        delta.get(), s, nullptr));
    results.push_back(d.Read());
  }
  const size_t bytes = results[0].size() * sizeof(T);
  EXPECT_EQ(std::memcmp(results[0].data(), results[1].data(), bytes), 0);
  EXPECT_EQ(std::memcmp(results[0].data(), results[2].data(), bytes), 0);
}

TYPED_TEST(AttentionKernels, OfASizeTheyLackAreRefused) {
  using T = TypeParam;
  const AttentionShape s = Shape(1, 4, 1, 1, sizeof(T) == 2 ? 80 : 256);
  EXPECT_FALSE(HasAttention<T>(s.size));
  EXPECT_TRUE(HasAttention<T>(64) && HasAttention<T>(96) && HasAttention<T>(128));
  EXPECT_EQ(Attention<T>(nullptr, nullptr, nullptr, s, nullptr), cudaErrorNotSupported);
  EXPECT_EQ(AttentionBackward<T>(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, s, nullptr),
            cudaErrorNotSupported);
}

TYPED_TEST(AttentionKernels, RotateHalfSplitPairsAndBack) {
  using T = TypeParam;
  for (const AttentionShape& s : {Shape(2, 5, 3, 1, 6), Shape(1, 3, 2, 2, 32)}) {
    const int64_t half = s.size / 2, n = s.sequences * s.length;
    Doubles cos, sin;
    for (int64_t t = 0; t < s.length; ++t) {
      for (int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(t) * std::pow(1e4, -2.0 * i / s.size);
        cos.push_back(std::cos(angle));
        sin.push_back(std::sin(angle));
      }
    }
    Doubles qkv = RandomValues(n * static_cast<int64_t>(Stride(s)), 1);
    OnDevice<T> d(qkv, 1);
    OnDevice<float> dcos(cos), dsin(sin);
    Doubles want = qkv;
    for (int64_t t = 0; t < n; ++t) {
      for (int64_t h = 0; h < s.heads + s.kv_heads; ++h) {
        for (int64_t i = 0; i < half; ++i) {
          const auto low = static_cast<size_t>(t) * Stride(s) + static_cast<size_t>(h * s.size + i);
          const auto high = low + static_cast<size_t>(half);
          const auto at = static_cast<size_t>(t % s.length * half + i);
          want[low] = qkv[low] * cos[at] - qkv[high] * sin[at];
          want[high] = qkv[high] * cos[at] + qkv[low] * sin[at];
        }
      }
    }
    EXPECT_CUDA_OK(Rope<T>(d.get(), dcos.get(), dsin.get(), s, false, nullptr));
    ExpectClose(d.doubles(), want, kBound<T>, "rotated");
    EXPECT_CUDA_OK(Rope<T>(d.get(), dcos.get(), dsin.get(), s, true, nullptr));
    ExpectClose(d.doubles(), qkv, 2 * kBound<T>, "rotated back");
  }
}

}  // namespace
}  // namespace headrace::cuda
