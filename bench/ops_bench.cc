// How far each op is from what the machine can do. "peak" is the share of the fused multiply-adds
// measured here for ops that multiply matrices (of fp32's: in bf16 up to 2); bytes a second, for
// the others, are to be held against Copy. One thread; run it on an idle machine:
//   build/bench/ops_bench --benchmark_filter=Attention
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "bench/fma_roof.h"
#include "worker/backend/ops.h"

namespace headrace {
namespace {

double PeakFlops() {
  static const double peak = FmaRoof(5);
  return peak;
}

constexpr std::align_val_t kHugePage{2 << 20};

struct Free {
  void operator()(float* p) const { ::operator delete(p, kHugePage); }
};
using Floats = std::unique_ptr<float[], Free>;

// Numbers in (−1, 1), in huge pages like an arena's.
Floats Make(int64_t count) {
  const size_t bytes = static_cast<size_t>(count) * 4;
  Floats f(static_cast<float*>(::operator new(bytes, kHugePage)));
  madvise(f.get(), bytes, MADV_HUGEPAGE);
  for (int64_t i = 0; i < count; ++i) {
    f[static_cast<size_t>(i)] = static_cast<float>(i * 7919 % 1999) / 1000.0f - 1.0f;
  }
  return f;
}

void ReportFlops(benchmark::State& state, double flops) {
  const double done = flops * static_cast<double>(state.iterations());
  state.counters["FLOP/s"] = benchmark::Counter(done, benchmark::Counter::kIsRate);
  if (PeakFlops() > 0) {
    state.counters["peak"] = benchmark::Counter(done / PeakFlops(), benchmark::Counter::kIsRate);
  }
}

// Floats read and written by one call.
void ReportFloats(benchmark::State& state, int64_t floats) {
  state.SetBytesProcessed(state.iterations() * floats * 4);
}

constexpr int64_t kTokens = 1024, kWidth = 768;

void Peak(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(PeakFlops());
  state.counters["FLOP/s"] = PeakFlops();
}
BENCHMARK(Peak)->Iterations(1);

void Copy(benchmark::State& state) {
  const int64_t count = state.range(0);
  Floats a = Make(count), b = Make(count);
  for (auto _ : state) {
    std::memcpy(b.get(), a.get(), static_cast<size_t>(count) * 4);
    benchmark::ClobberMemory();
  }
  ReportFloats(state, 2 * count);
}
BENCHMARK(Copy)->Arg(kTokens* kWidth)->Arg(32 << 20)->Unit(benchmark::kMicrosecond);

// Ops of one thread, with the panels they need.
class BenchOps {
 public:
  explicit BenchOps(Precision precision)
      : panels_(Make(PanelBytes(precision, 1) / 4)),
        ops_(CreateCpuOps(1, precision, panels_.get())) {}
  Ops* operator->() { return ops_.get(); }

 private:
  Floats panels_;
  std::unique_ptr<Ops> ops_;
};

// What cannot run here is skipped and says so.
bool Runs(Precision precision, benchmark::State& state) {
  if (precision != Precision::kBf16 || CpuMultipliesBf16()) return true;
  state.SkipWithError("this processor has no avx512_bf16");
  return false;
}

// One of a linear layer's products. Args: n, in, out.
template <Precision kPrecision, typename Call>
void RunLinear(benchmark::State& state, const Call& call) {
  if (!Runs(kPrecision, state)) return;
  const int64_t n = state.range(0), in = state.range(1), out = state.range(2);
  BenchOps ops(kPrecision);
  Floats x = Make(n * in), w = Make(in * out), bias = Make(out), y = Make(n * out);
  for (auto _ : state) call(ops, x.get(), w.get(), bias.get(), y.get(), n, in, out);
  ReportFlops(state, 2.0 * static_cast<double>(n * in * out));
}
template <Precision kPrecision>
void Linear(benchmark::State& state) {
  RunLinear<kPrecision>(
      state, [](BenchOps& ops, float* x, float* w, float* bias, float* y, int64_t n, int64_t in,
                int64_t out) { ops->Linear(x, w, bias, y, n, in, out); });
}
template <Precision kPrecision>
void LinearBackwardInput(benchmark::State& state) {
  RunLinear<kPrecision>(
      state, [](BenchOps& ops, float* dx, float* w, float*, float* dy, int64_t n, int64_t in,
                int64_t out) { ops->LinearBackwardInput(dy, w, dx, n, in, out, false); });
}
template <Precision kPrecision>
void LinearBackwardWeight(benchmark::State& state) {
  RunLinear<kPrecision>(
      state, [](BenchOps& ops, float* x, float* dw, float* dbias, float* dy, int64_t n, int64_t in,
                int64_t out) { ops->LinearBackwardWeight(dy, x, dw, dbias, n, in, out); });
}
// GPT-2 small's, the last one the head's.
#define HEADRACE_LINEAR_SHAPES  \
  Args({512, 384, 1536})        \
      ->Args({1024, 768, 768})  \
      ->Args({1024, 768, 3072}) \
      ->Args({1024, 3072, 768}) \
      ->Args({256, 768, 50257}) \
      ->Unit(benchmark::kMicrosecond)
BENCHMARK(Linear<Precision::kFp32>)->HEADRACE_LINEAR_SHAPES;
BENCHMARK(LinearBackwardInput<Precision::kFp32>)->HEADRACE_LINEAR_SHAPES;
BENCHMARK(LinearBackwardWeight<Precision::kFp32>)->HEADRACE_LINEAR_SHAPES;
BENCHMARK(Linear<Precision::kBf16>)->HEADRACE_LINEAR_SHAPES;
BENCHMARK(LinearBackwardInput<Precision::kBf16>)->HEADRACE_LINEAR_SHAPES;
BENCHMARK(LinearBackwardWeight<Precision::kBf16>)->HEADRACE_LINEAR_SHAPES;

// length, heads, kv_heads, size, dropout in percent
AttentionShape ShapeOf(const benchmark::State& state) {
  return {1,
          state.range(0),
          state.range(1),
          state.range(2),
          state.range(3),
          static_cast<float>(state.range(4)) / 100.0f,
          MakeStream(1, RandomPurpose::kDropout, 1, 2, 3)};
}
// Multiply-adds of one product over the lower triangle.
double Triangle(const AttentionShape& s) {
  return static_cast<double>(s.heads * s.size) * static_cast<double>(s.length * (s.length + 1));
}

template <Precision kPrecision>
void Attention(benchmark::State& state) {
  if (!Runs(kPrecision, state)) return;
  const AttentionShape s = ShapeOf(state);
  BenchOps ops(kPrecision);
  Floats qkv = Make(s.length * (s.heads + 2 * s.kv_heads) * s.size);
  Floats out = Make(s.length * s.heads * s.size), lse = Make(s.length * s.heads);
  Floats workspace = Make(AttentionWorkspaceBytes(s, 1) / 4);
  for (auto _ : state) ops->Attention(qkv.get(), out.get(), lse.get(), s, workspace.get());
  ReportFlops(state, 2 * Triangle(s));
}
template <Precision kPrecision>
void AttentionBackward(benchmark::State& state) {
  if (!Runs(kPrecision, state)) return;
  const AttentionShape s = ShapeOf(state);
  BenchOps ops(kPrecision);
  const int64_t packed = s.length * (s.heads + 2 * s.kv_heads) * s.size;
  Floats qkv = Make(packed), dqkv = Make(packed), lse = Make(s.length * s.heads);
  Floats out = Make(s.length * s.heads * s.size), dout = Make(s.length * s.heads * s.size);
  Floats workspace = Make(AttentionWorkspaceBytes(s, 1) / 4);
  ops->Attention(qkv.get(), out.get(), lse.get(), s, workspace.get());
  for (auto _ : state) {
    ops->AttentionBackward(dout.get(), qkv.get(), out.get(), lse.get(), dqkv.get(), s,
                           workspace.get());
  }
  ReportFlops(state, 5 * Triangle(s));
}
#define HEADRACE_ATTENTION_SHAPES   \
  Args({128, 4, 4, 32, 0})          \
      ->Args({256, 6, 6, 64, 0})    \
      ->Args({256, 6, 6, 64, 10})   \
      ->Args({512, 12, 12, 64, 0})  \
      ->Args({1024, 12, 12, 64, 0}) \
      ->Args({1024, 12, 4, 64, 0})  \
      ->Unit(benchmark::kMicrosecond)
BENCHMARK(Attention<Precision::kFp32>)->HEADRACE_ATTENTION_SHAPES;
BENCHMARK(AttentionBackward<Precision::kFp32>)->HEADRACE_ATTENTION_SHAPES;
BENCHMARK(Attention<Precision::kBf16>)->HEADRACE_ATTENTION_SHAPES;
BENCHMARK(AttentionBackward<Precision::kBf16>)->HEADRACE_ATTENTION_SHAPES;

void LayerNorm(benchmark::State& state) {
  auto ops = CreateCpuOps(1);
  Floats x = Make(kTokens * kWidth), y = Make(kTokens * kWidth), gain = Make(kWidth);
  Floats bias = Make(kWidth), mean = Make(kTokens), rstd = Make(kTokens);
  for (auto _ : state) {
    ops->LayerNorm(x.get(), gain.get(), bias.get(), y.get(), mean.get(), rstd.get(), kTokens,
                   kWidth, 1e-5f);
  }
  ReportFloats(state, 2 * kTokens * kWidth);
}
void LayerNormBackward(benchmark::State& state) {
  auto ops = CreateCpuOps(1);
  Floats x = Make(kTokens * kWidth), dy = Make(kTokens * kWidth), dx = Make(kTokens * kWidth);
  Floats gain = Make(kWidth), mean = Make(kTokens), rstd = Make(kTokens), dgain = Make(kWidth);
  Floats dbias = Make(kWidth);
  for (auto _ : state) {
    ops->LayerNormBackward(dy.get(), x.get(), gain.get(), mean.get(), rstd.get(), nullptr, dx.get(),
                           dgain.get(), dbias.get(), kTokens, kWidth);
  }
  ReportFloats(state, 3 * kTokens * kWidth);
}
void RmsNormBackward(benchmark::State& state) {
  auto ops = CreateCpuOps(1);
  Floats x = Make(kTokens * kWidth), dy = Make(kTokens * kWidth), dx = Make(kTokens * kWidth);
  Floats gain = Make(kWidth), rstd = Make(kTokens), dgain = Make(kWidth);
  for (auto _ : state) {
    ops->RmsNormBackward(dy.get(), x.get(), gain.get(), rstd.get(), nullptr, dx.get(), dgain.get(),
                         kTokens, kWidth);
  }
  ReportFloats(state, 3 * kTokens * kWidth);
}
BENCHMARK(LayerNorm)->Unit(benchmark::kMicrosecond);
BENCHMARK(LayerNormBackward)->Unit(benchmark::kMicrosecond);
BENCHMARK(RmsNormBackward)->Unit(benchmark::kMicrosecond);

constexpr int64_t kElements = kTokens * 4 * kWidth;

void Gelu(benchmark::State& state) {
  auto ops = CreateCpuOps(1);
  Floats x = Make(kElements), y = Make(kElements);
  for (auto _ : state) ops->Gelu(x.get(), y.get(), kElements);
  ReportFloats(state, 2 * kElements);
}
void GeluBackward(benchmark::State& state) {
  auto ops = CreateCpuOps(1);
  Floats x = Make(kElements), dy = Make(kElements), dx = Make(kElements);
  for (auto _ : state) ops->GeluBackward(dy.get(), x.get(), dx.get(), kElements);
  ReportFloats(state, 3 * kElements);
}
void SwiGluBackward(benchmark::State& state) {
  auto ops = CreateCpuOps(1);
  const int64_t width = 2 * kWidth;
  Floats x = Make(2 * kTokens * width), dy = Make(kTokens * width), dx = Make(2 * kTokens * width);
  for (auto _ : state) ops->SwiGluBackward(dy.get(), x.get(), dx.get(), kTokens, width);
  ReportFloats(state, 5 * kTokens * width);
}
void Dropout(benchmark::State& state) {
  auto ops = CreateCpuOps(1);
  Floats x = Make(kTokens * kWidth);
  const RandomStream mask = MakeStream(1, RandomPurpose::kDropout, 1, 2, 3);
  for (auto _ : state) ops->Dropout(x.get(), x.get(), kTokens * kWidth, 0.1f, mask);
  ReportFloats(state, 2 * kTokens * kWidth);
}
BENCHMARK(Gelu)->Unit(benchmark::kMicrosecond);
BENCHMARK(GeluBackward)->Unit(benchmark::kMicrosecond);
BENCHMARK(SwiGluBackward)->Unit(benchmark::kMicrosecond);
BENCHMARK(Dropout)->Unit(benchmark::kMicrosecond);

void CrossEntropy(benchmark::State& state) {
  const int64_t n = 64, vocabulary = state.range(0);
  auto ops = CreateCpuOps(1);
  Floats logits = Make(n * vocabulary);
  const std::vector<int32_t> targets(static_cast<size_t>(n), 1);
  double loss = 0;
  for (auto _ : state) {
    ops->CrossEntropy(logits.get(), targets.data(), &loss, n, vocabulary);
  }
  ReportFloats(state, n * vocabulary);
}
void CrossEntropyBackward(benchmark::State& state) {
  const int64_t n = 64, vocabulary = state.range(0);
  auto ops = CreateCpuOps(1);
  Floats logits = Make(n * vocabulary);
  const std::vector<int32_t> targets(static_cast<size_t>(n), 1);
  double loss = 0;
  for (auto _ : state) {
    ops->CrossEntropyBackward(logits.get(), targets.data(), &loss, n, vocabulary, 1.0f);
  }
  ReportFloats(state, 2 * n * vocabulary);
}
BENCHMARK(CrossEntropy)->Arg(256)->Arg(50257)->Unit(benchmark::kMicrosecond);
BENCHMARK(CrossEntropyBackward)->Arg(256)->Arg(50257)->Unit(benchmark::kMicrosecond);

void SquaredNorm(benchmark::State& state) {
  const int64_t count = state.range(0);
  auto ops = CreateCpuOps(1);
  Floats x = Make(count);
  double sum = 0;
  for (auto _ : state) ops->SquaredNorm(x.get(), count, &sum);
  ReportFloats(state, count);
}
void AdamW(benchmark::State& state) {
  const int64_t count = state.range(0);
  auto ops = CreateCpuOps(1);
  Floats w = Make(count), g = Make(count), m = Make(count), v = Make(count);
  ops->Fill(v.get(), count, 1);
  const UpdatedTensor updated{w.get(), g.get(), m.get(), v.get(), nullptr, count};
  for (auto _ : state) {
    ops->AdamW({&updated, 1}, {1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f});
  }
  ReportFloats(state, 7 * count);
}
BENCHMARK(SquaredNorm)->Arg(384 * 1536)->Arg(32 << 20)->Unit(benchmark::kMicrosecond);
BENCHMARK(AdamW)->Arg(384 * 1536)->Arg(32 << 20)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace headrace

BENCHMARK_MAIN();
