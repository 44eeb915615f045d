// The promise under the promise: an op's bits depend on its inputs alone, not on the run, the
// address or the number of threads.
#include <map>

#include "worker/backend/ops_testing.h"

namespace headrace {
namespace {

using Bits = std::vector<uint32_t>;
using Outputs = std::map<std::string, Bits>;

Bits BitsOf(Buffer& buffer) {
  Bits bits(static_cast<size_t>(buffer.count()));
  std::memcpy(bits.data(), buffer.data(), bits.size() * 4);
  return bits;
}

Bits BitsOf(double value) {
  Bits bits(2);
  std::memcpy(bits.data(), &value, 8);
  return bits;
}

struct Sizes {
  int64_t n, width, out, vocabulary;
};

void RunMatrices(Ops& ops, int shift, const Sizes& s, Outputs* outputs) {
  Buffer x(RandomValues(s.n * s.width, 1), shift), w(RandomValues(s.out * s.width, 2), shift + 16);
  Buffer bias(RandomValues(s.out, 3), shift), dy(RandomValues(s.n * s.out, 4), shift + 32);
  Buffer y(s.n * s.out, shift), dx(s.n * s.width, shift + 48);
  Buffer dw(RandomValues(s.out * s.width, 5), shift), db(RandomValues(s.out, 6), shift);
  ops.Linear(x.data(), w.data(), bias.data(), y.data(), s.n, s.width, s.out);
  ops.LinearBackwardInput(dy.data(), w.data(), dx.data(), s.n, s.width, s.out, false);
  ops.LinearBackwardWeight(dy.data(), x.data(), dw.data(), db.data(), s.n, s.width, s.out);
  (*outputs)["linear"] = BitsOf(y);
  (*outputs)["linear dx"] = BitsOf(dx);
  (*outputs)["linear dw"] = BitsOf(dw);
  (*outputs)["linear dbias"] = BitsOf(db);
}

void RunNorms(Ops& ops, int shift, const Sizes& s, Outputs* outputs) {
  const int64_t count = s.n * s.width;
  Buffer x(RandomValues(count, 1), shift), gain(RandomValues(s.width, 2), shift + 16);
  Buffer bias(RandomValues(s.width, 3), shift), dy(RandomValues(count, 4), shift + 32);
  Buffer y(count, shift), mean(s.n, shift), rstd(s.n, shift), dx(count, shift + 16);
  Buffer dgain(RandomValues(s.width, 5), shift), dbias(RandomValues(s.width, 6), shift);
  ops.LayerNorm(x.data(), gain.data(), bias.data(), y.data(), mean.data(), rstd.data(), s.n,
                s.width, 1e-5f);
  ops.LayerNormBackward(dy.data(), x.data(), gain.data(), mean.data(), rstd.data(), nullptr,
                        dx.data(), dgain.data(), dbias.data(), s.n, s.width);
  (*outputs)["layer norm"] = BitsOf(y);
  (*outputs)["layer norm dx"] = BitsOf(dx);
  (*outputs)["layer norm dgain"] = BitsOf(dgain);
  (*outputs)["layer norm dbias"] = BitsOf(dbias);
  ops.RmsNorm(x.data(), gain.data(), y.data(), rstd.data(), s.n, s.width, 1e-5f);
  ops.RmsNormBackward(dy.data(), x.data(), gain.data(), rstd.data(), dx.data(), dx.data(),
                      dgain.data(), s.n, s.width);
  (*outputs)["rms norm"] = BitsOf(y);
  (*outputs)["rms norm dx"] = BitsOf(dx);
  (*outputs)["rms norm dgain"] = BitsOf(dgain);
  (*outputs)["squared norm"] = BitsOf(SquaredNormOf(ops, x.data(), count));
}

void RunElementwise(Ops& ops, int shift, const Sizes& s, Outputs* outputs) {
  const int64_t count = s.n * s.width;
  Buffer x(RandomValues(2 * count, 1, 4), shift), dy(RandomValues(count, 2), shift + 16);
  Buffer y(count, shift + 32), dx(2 * count, shift);
  ops.Gelu(x.data(), y.data(), count);
  (*outputs)["gelu"] = BitsOf(y);
  ops.GeluBackward(dy.data(), x.data(), y.data(), count);
  (*outputs)["gelu dx"] = BitsOf(y);
  ops.SwiGlu(x.data(), y.data(), s.n, s.width);
  (*outputs)["swiglu"] = BitsOf(y);
  ops.SwiGluBackward(dy.data(), x.data(), dx.data(), s.n, s.width);
  (*outputs)["swiglu dx"] = BitsOf(dx);
  ops.Dropout(x.data(), y.data(), count, 0.1f, MakeStream(1, RandomPurpose::kDropout, 1, 2, 3));
  (*outputs)["dropout"] = BitsOf(y);
  ops.FillNormal(y.data(), count, 0.02f, MakeStream(1, RandomPurpose::kInit, 1, 2, 3));
  (*outputs)["fill normal"] = BitsOf(y);
  Buffer w(RandomValues(count, 3), shift), m(Doubles(static_cast<size_t>(count), 0.1), shift + 16);
  Buffer v(Doubles(static_cast<size_t>(count), 0.2), shift);
  const UpdatedTensor updated{w.data(), dy.data(), m.data(), v.data(), nullptr, count};
  ops.AdamW({&updated, 1}, {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f});
  (*outputs)["adamw"] = BitsOf(w);
}

void RunEmbedding(Ops& ops, int shift, const Sizes& s, Outputs* outputs) {
  const auto ids = RandomIds(s.n, 1, s.vocabulary);
  Buffer wte(RandomValues(s.vocabulary * s.width, 2), shift), y(s.n * s.width, shift + 16);
  Buffer wpe(RandomValues(s.n * s.width, 3), shift), dwpe(s.n * s.width, shift);
  Buffer dwte(s.vocabulary * s.width, shift + 32);
  dwte.Set(0);
  dwpe.Set(0);
  ops.Embedding(ids.data(), wte.data(), wpe.data(), y.data(), s.n, s.n, s.width);
  ops.EmbeddingBackward(ids.data(), y.data(), dwte.data(), dwpe.data(), s.n, s.n, s.width);
  (*outputs)["embedding"] = BitsOf(y);
  (*outputs)["embedding dwte"] = BitsOf(dwte);
}

void RunCrossEntropy(Ops& ops, int shift, const Sizes& s, Outputs* outputs) {
  const auto targets = RandomIds(s.n, 1, s.vocabulary);
  Buffer logits(RandomValues(s.n * s.vocabulary, 2, 5), shift);
  (*outputs)["loss"] = BitsOf(LossOf(ops, logits.data(), targets.data(), s.n, s.vocabulary));
  double loss = 0;
  ops.CrossEntropyBackward(logits.data(), targets.data(), &loss, s.n, s.vocabulary, 0.01f);
  (*outputs)["loss gradient"] = BitsOf(logits);
}

void RunAttention(Ops& ops, int shift, int threads, float dropout, Outputs* outputs) {
  AttentionShape shape{2, 131, 4, 2, 16, dropout, MakeStream(1, RandomPurpose::kDropout, 1, 2, 3)};
  const int64_t n = 262, stride = 8 * 16;
  Buffer qkv(RandomValues(n * stride, 1), shift), out(n * 64, shift + 16), lse(n * 4, shift);
  Buffer dout(RandomValues(n * 64, 2), shift + 32), dqkv(n * stride, shift);
  Buffer workspace(AttentionWorkspaceBytes(shape, threads) / 4, shift + 48);
  ops.Attention(qkv.data(), out.data(), lse.data(), shape, workspace.data());
  ops.AttentionBackward(dout.data(), qkv.data(), out.data(), lse.data(), dqkv.data(), shape,
                        workspace.data());
  const std::string name = dropout > 0 ? "attention with dropout" : "attention";
  (*outputs)[name] = BitsOf(out);
  (*outputs)[name + " dqkv"] = BitsOf(dqkv);
}

// `shift`: by how many floats the buffers lie off a page.
Outputs RunAll(int threads, int shift, const Sizes& sizes) {
  const auto ops = CreateCpuOps(threads);
  Outputs outputs;
  RunMatrices(*ops, shift, sizes, &outputs);
  RunNorms(*ops, shift, sizes, &outputs);
  RunElementwise(*ops, shift, sizes, &outputs);
  RunEmbedding(*ops, shift, sizes, &outputs);
  RunCrossEntropy(*ops, shift, sizes, &outputs);
  RunAttention(*ops, shift, threads, 0, &outputs);
  RunAttention(*ops, shift, threads, 0.2f, &outputs);
  return outputs;
}

void ExpectSame(const Outputs& a, const Outputs& b, const std::string& what) {
  for (const auto& [name, bits] : a) EXPECT_TRUE(bits == b.at(name)) << name << " differs " << what;
}

constexpr Sizes kSizes[] = {{7, 13, 11, 17}, {64, 64, 192, 256}, {131, 97, 65, 1031}};

TEST(Repeat, EveryOpGivesTheSameBitsInEveryRunAndAtEveryAddress) {
  for (const Sizes& sizes : kSizes) {
    const Outputs first = RunAll(1, 0, sizes);
    for (int shift : {0, 16, 80, 272, 1, 7}) {
      ExpectSame(first, RunAll(1, shift, sizes), "moved by " + std::to_string(shift) + " floats");
    }
  }
}

// Attention calls dnnl_sgemm too, but one head on one thread. dnnl_sgemm itself splits differently
// for each number of threads (and for each number of rows), hence threads belong to a job's
// identity.
TEST(Repeat, EveryOpButLinearGivesTheSameBitsWithOneThreadAndWithThree) {
  for (const Sizes& sizes : kSizes) {
    Outputs one = RunAll(1, 0, sizes);
    for (const char* name : {"linear", "linear dx", "linear dw"}) one.erase(name);
    ExpectSame(one, RunAll(3, 0, sizes), "by threads");
  }
}

}  // namespace
}  // namespace headrace
