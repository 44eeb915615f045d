#include "bench/timed_ops.h"

#include <chrono>

namespace headrace {
namespace {

// Adds the seconds of its own life to an op.
class Stopwatch {
 public:
  Stopwatch(OpTime* time, double flops) : time_(*time) {
    ++time_.calls;
    time_.flops += flops;
  }
  ~Stopwatch() { time_.seconds += std::chrono::duration<double>(Timer::now() - start_).count(); }

 private:
  using Timer = std::chrono::steady_clock;
  OpTime& time_;
  const Timer::time_point start_ = Timer::now();
};

double Product(int64_t a, int64_t b, int64_t c) {
  return 2.0 * static_cast<double>(a) * static_cast<double>(b) * static_cast<double>(c);
}

// One of attention's products, under the causal mask.
double Triangle(const AttentionShape& s) {
  return static_cast<double>(s.sequences * s.heads * s.size) *
         static_cast<double>(s.length * (s.length + 1));
}

}  // namespace

void TimedOps::Linear(ConstAct x, ConstWeight w, ConstWeight bias, Act y, int64_t n, int64_t in,
                      int64_t out) {
  const Stopwatch stopwatch(&times_["Linear"], Product(n, in, out));
  ops_.Linear(x, w, bias, y, n, in, out);
}

void TimedOps::LinearBackwardInput(ConstAct dy, ConstWeight w, Act dx, int64_t n, int64_t in,
                                   int64_t out, bool accumulate) {
  const Stopwatch stopwatch(&times_["LinearBackwardInput"], Product(n, in, out));
  ops_.LinearBackwardInput(dy, w, dx, n, in, out, accumulate);
}

void TimedOps::LinearBackwardWeight(ConstAct dy, ConstAct x, float* dw, float* dbias, int64_t n,
                                    int64_t in, int64_t out) {
  const Stopwatch stopwatch(&times_["LinearBackwardWeight"], Product(n, in, out));
  ops_.LinearBackwardWeight(dy, x, dw, dbias, n, in, out);
}

void TimedOps::Embedding(const int32_t* ids, const float* wte, const float* wpe, Act y, int64_t n,
                         int64_t length, int64_t width) {
  const Stopwatch stopwatch(&times_["Embedding"], 0);
  ops_.Embedding(ids, wte, wpe, y, n, length, width);
}

void TimedOps::EmbeddingBackward(const int32_t* ids, ConstAct dy, float* dwte, float* dwpe,
                                 int64_t n, int64_t length, int64_t width) {
  const Stopwatch stopwatch(&times_["EmbeddingBackward"], 0);
  ops_.EmbeddingBackward(ids, dy, dwte, dwpe, n, length, width);
}

void TimedOps::LayerNorm(ConstAct x, const float* gain, const float* bias, Act y, float* mean,
                         float* rstd, int64_t n, int64_t width, float epsilon) {
  const Stopwatch stopwatch(&times_["LayerNorm"], 0);
  ops_.LayerNorm(x, gain, bias, y, mean, rstd, n, width, epsilon);
}

void TimedOps::LayerNormBackward(ConstAct dy, ConstAct x, const float* gain, const float* mean,
                                 const float* rstd, ConstAct residual, Act dx, float* dgain,
                                 float* dbias, int64_t n, int64_t width) {
  const Stopwatch stopwatch(&times_["LayerNormBackward"], 0);
  ops_.LayerNormBackward(dy, x, gain, mean, rstd, residual, dx, dgain, dbias, n, width);
}

void TimedOps::RmsNorm(ConstAct x, const float* gain, Act y, float* rstd, int64_t n, int64_t width,
                       float epsilon) {
  const Stopwatch stopwatch(&times_["RmsNorm"], 0);
  ops_.RmsNorm(x, gain, y, rstd, n, width, epsilon);
}

void TimedOps::RmsNormBackward(ConstAct dy, ConstAct x, const float* gain, const float* rstd,
                               ConstAct residual, Act dx, float* dgain, int64_t n, int64_t width) {
  const Stopwatch stopwatch(&times_["RmsNormBackward"], 0);
  ops_.RmsNormBackward(dy, x, gain, rstd, residual, dx, dgain, n, width);
}

void TimedOps::Gelu(ConstAct x, Act y, int64_t count) {
  const Stopwatch stopwatch(&times_["Gelu"], 0);
  ops_.Gelu(x, y, count);
}

void TimedOps::GeluBackward(ConstAct dy, ConstAct x, Act dx, int64_t count) {
  const Stopwatch stopwatch(&times_["GeluBackward"], 0);
  ops_.GeluBackward(dy, x, dx, count);
}

void TimedOps::SwiGlu(ConstAct gate_up, Act y, int64_t n, int64_t width) {
  const Stopwatch stopwatch(&times_["SwiGlu"], 0);
  ops_.SwiGlu(gate_up, y, n, width);
}

void TimedOps::SwiGluBackward(ConstAct dy, ConstAct gate_up, Act dgate_up, int64_t n,
                              int64_t width) {
  const Stopwatch stopwatch(&times_["SwiGluBackward"], 0);
  ops_.SwiGluBackward(dy, gate_up, dgate_up, n, width);
}

void TimedOps::RopeTable(float* cos, float* sin, int64_t length, int64_t size, double theta) {
  const Stopwatch stopwatch(&times_["RopeTable"], 0);
  ops_.RopeTable(cos, sin, length, size, theta);
}

void TimedOps::Rope(Act qkv, const float* cos, const float* sin, const AttentionShape& shape,
                    bool inverse) {
  const Stopwatch stopwatch(&times_["Rope"], 0);
  ops_.Rope(qkv, cos, sin, shape, inverse);
}

void TimedOps::Attention(ConstAct qkv, Act out, float* lse, const AttentionShape& shape,
                         float* workspace) {
  const Stopwatch stopwatch(&times_["Attention"], 2 * Triangle(shape));
  ops_.Attention(qkv, out, lse, shape, workspace);
}

void TimedOps::AttentionBackward(ConstAct dout, ConstAct qkv, ConstAct out, const float* lse,
                                 Act dqkv, const AttentionShape& shape, float* workspace) {
  const Stopwatch stopwatch(&times_["AttentionBackward"], 5 * Triangle(shape));
  ops_.AttentionBackward(dout, qkv, out, lse, dqkv, shape, workspace);
}

void TimedOps::Add(ConstAct a, ConstAct b, Act y, int64_t count) {
  const Stopwatch stopwatch(&times_["Add"], 0);
  ops_.Add(a, b, y, count);
}

void TimedOps::Dropout(ConstAct x, Act y, int64_t count, float p, const RandomStream& mask) {
  const Stopwatch stopwatch(&times_["Dropout"], 0);
  ops_.Dropout(x, y, count, p, mask);
}

void TimedOps::NarrowBf16(const float* x, uint16_t* y, int64_t count) {
  const Stopwatch stopwatch(&times_["NarrowBf16"], 0);
  ops_.NarrowBf16(x, y, count);
}

void TimedOps::WidenBf16(const uint16_t* x, float* y, int64_t count) {
  const Stopwatch stopwatch(&times_["WidenBf16"], 0);
  ops_.WidenBf16(x, y, count);
}

void TimedOps::CrossEntropy(ConstAct logits, const int32_t* targets, double* loss, int64_t n,
                            int64_t vocabulary) {
  const Stopwatch stopwatch(&times_["CrossEntropy"], 0);
  ops_.CrossEntropy(logits, targets, loss, n, vocabulary);
}

void TimedOps::CrossEntropyBackward(Act logits, const int32_t* targets, double* loss, int64_t n,
                                    int64_t vocabulary, float scale) {
  const Stopwatch stopwatch(&times_["CrossEntropyBackward"], 0);
  ops_.CrossEntropyBackward(logits, targets, loss, n, vocabulary, scale);
}

void TimedOps::SquaredNorms(std::span<const std::span<const float>> tensors, double* sums) {
  const Stopwatch stopwatch(&times_["SquaredNorms"], 0);
  ops_.SquaredNorms(tensors, sums);
}

void TimedOps::Zero(float* x, int64_t count) {
  const Stopwatch stopwatch(&times_["Zero"], 0);
  ops_.Zero(x, count);
}

void TimedOps::Copy(const float* x, float* y, int64_t count) {
  const Stopwatch stopwatch(&times_["Copy"], 0);
  ops_.Copy(x, y, count);
}

void TimedOps::FillNormal(float* x, int64_t count, float std, const RandomStream& stream) {
  const Stopwatch stopwatch(&times_["FillNormal"], 0);
  ops_.FillNormal(x, count, std, stream);
}

void TimedOps::Fill(float* x, int64_t count, float value) {
  const Stopwatch stopwatch(&times_["Fill"], 0);
  ops_.Fill(x, count, value);
}

void TimedOps::AdamW(std::span<const UpdatedTensor> tensors, const AdamWStep& step) {
  const Stopwatch stopwatch(&times_["AdamW"], 0);
  ops_.AdamW(tensors, step);
}

void TimedOps::Sgd(std::span<const UpdatedTensor> tensors, const SgdStep& step) {
  const Stopwatch stopwatch(&times_["Sgd"], 0);
  ops_.Sgd(tensors, step);
}

void TimedOps::RmsProp(std::span<const UpdatedTensor> tensors, const RmsPropStep& step) {
  const Stopwatch stopwatch(&times_["RmsProp"], 0);
  ops_.RmsProp(tensors, step);
}

}  // namespace headrace
