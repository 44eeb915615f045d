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

void TimedOps::Linear(const float* x, const float* w, const float* bias, float* y, int64_t n,
                      int64_t in, int64_t out) {
  const Stopwatch stopwatch(&times_["Linear"], Product(n, in, out));
  ops_.Linear(x, w, bias, y, n, in, out);
}

void TimedOps::LinearBackwardInput(const float* dy, const float* w, float* dx, int64_t n,
                                   int64_t in, int64_t out, bool accumulate) {
  const Stopwatch stopwatch(&times_["LinearBackwardInput"], Product(n, in, out));
  ops_.LinearBackwardInput(dy, w, dx, n, in, out, accumulate);
}

void TimedOps::LinearBackwardWeight(const float* dy, const float* x, float* dw, float* dbias,
                                    int64_t n, int64_t in, int64_t out) {
  const Stopwatch stopwatch(&times_["LinearBackwardWeight"], Product(n, in, out));
  ops_.LinearBackwardWeight(dy, x, dw, dbias, n, in, out);
}

void TimedOps::Embedding(const int32_t* ids, const float* wte, const float* wpe, float* y,
                         int64_t n, int64_t length, int64_t width) {
  const Stopwatch stopwatch(&times_["Embedding"], 0);
  ops_.Embedding(ids, wte, wpe, y, n, length, width);
}

void TimedOps::EmbeddingBackward(const int32_t* ids, const float* dy, float* dwte, float* dwpe,
                                 int64_t n, int64_t length, int64_t width) {
  const Stopwatch stopwatch(&times_["EmbeddingBackward"], 0);
  ops_.EmbeddingBackward(ids, dy, dwte, dwpe, n, length, width);
}

void TimedOps::LayerNorm(const float* x, const float* gain, const float* bias, float* y,
                         float* mean, float* rstd, int64_t n, int64_t width, float epsilon) {
  const Stopwatch stopwatch(&times_["LayerNorm"], 0);
  ops_.LayerNorm(x, gain, bias, y, mean, rstd, n, width, epsilon);
}

void TimedOps::LayerNormBackward(const float* dy, const float* x, const float* gain,
                                 const float* mean, const float* rstd, float* dx, float* dgain,
                                 float* dbias, int64_t n, int64_t width, bool accumulate) {
  const Stopwatch stopwatch(&times_["LayerNormBackward"], 0);
  ops_.LayerNormBackward(dy, x, gain, mean, rstd, dx, dgain, dbias, n, width, accumulate);
}

void TimedOps::RmsNorm(const float* x, const float* gain, float* y, float* rstd, int64_t n,
                       int64_t width, float epsilon) {
  const Stopwatch stopwatch(&times_["RmsNorm"], 0);
  ops_.RmsNorm(x, gain, y, rstd, n, width, epsilon);
}

void TimedOps::RmsNormBackward(const float* dy, const float* x, const float* gain,
                               const float* rstd, float* dx, float* dgain, int64_t n, int64_t width,
                               bool accumulate) {
  const Stopwatch stopwatch(&times_["RmsNormBackward"], 0);
  ops_.RmsNormBackward(dy, x, gain, rstd, dx, dgain, n, width, accumulate);
}

void TimedOps::Gelu(const float* x, float* y, int64_t count) {
  const Stopwatch stopwatch(&times_["Gelu"], 0);
  ops_.Gelu(x, y, count);
}

void TimedOps::GeluBackward(const float* dy, const float* x, float* dx, int64_t count) {
  const Stopwatch stopwatch(&times_["GeluBackward"], 0);
  ops_.GeluBackward(dy, x, dx, count);
}

void TimedOps::SwiGlu(const float* gate_up, float* y, int64_t n, int64_t width) {
  const Stopwatch stopwatch(&times_["SwiGlu"], 0);
  ops_.SwiGlu(gate_up, y, n, width);
}

void TimedOps::SwiGluBackward(const float* dy, const float* gate_up, float* dgate_up, int64_t n,
                              int64_t width) {
  const Stopwatch stopwatch(&times_["SwiGluBackward"], 0);
  ops_.SwiGluBackward(dy, gate_up, dgate_up, n, width);
}

void TimedOps::RopeTable(float* cos, float* sin, int64_t length, int64_t size, double theta) {
  const Stopwatch stopwatch(&times_["RopeTable"], 0);
  ops_.RopeTable(cos, sin, length, size, theta);
}

void TimedOps::Rope(float* qkv, const float* cos, const float* sin, const AttentionShape& shape,
                    bool inverse) {
  const Stopwatch stopwatch(&times_["Rope"], 0);
  ops_.Rope(qkv, cos, sin, shape, inverse);
}

void TimedOps::Attention(const float* qkv, float* out, float* lse, const AttentionShape& shape,
                         float* workspace) {
  const Stopwatch stopwatch(&times_["Attention"], 2 * Triangle(shape));
  ops_.Attention(qkv, out, lse, shape, workspace);
}

void TimedOps::AttentionBackward(const float* dout, const float* qkv, const float* out,
                                 const float* lse, float* dqkv, const AttentionShape& shape,
                                 float* workspace) {
  const Stopwatch stopwatch(&times_["AttentionBackward"], 5 * Triangle(shape));
  ops_.AttentionBackward(dout, qkv, out, lse, dqkv, shape, workspace);
}

void TimedOps::Add(const float* a, const float* b, float* y, int64_t count) {
  const Stopwatch stopwatch(&times_["Add"], 0);
  ops_.Add(a, b, y, count);
}

void TimedOps::Dropout(const float* x, float* y, int64_t count, float p, const RandomStream& mask) {
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

double TimedOps::CrossEntropy(const float* logits, const int32_t* targets, int64_t n,
                              int64_t vocabulary) {
  const Stopwatch stopwatch(&times_["CrossEntropy"], 0);
  return ops_.CrossEntropy(logits, targets, n, vocabulary);
}

double TimedOps::CrossEntropyBackward(float* logits, const int32_t* targets, int64_t n,
                                      int64_t vocabulary, float scale) {
  const Stopwatch stopwatch(&times_["CrossEntropyBackward"], 0);
  return ops_.CrossEntropyBackward(logits, targets, n, vocabulary, scale);
}

double TimedOps::SquaredNorm(const float* x, int64_t count) {
  const Stopwatch stopwatch(&times_["SquaredNorm"], 0);
  return ops_.SquaredNorm(x, count);
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

void TimedOps::AdamW(float* w, const float* g, float* m, float* v, int64_t count,
                     const AdamWStep& step) {
  const Stopwatch stopwatch(&times_["AdamW"], 0);
  ops_.AdamW(w, g, m, v, count, step);
}

void TimedOps::Sgd(float* w, const float* g, float* momentum, int64_t count, const SgdStep& step) {
  const Stopwatch stopwatch(&times_["Sgd"], 0);
  ops_.Sgd(w, g, momentum, count, step);
}

void TimedOps::RmsProp(float* w, const float* g, float* square, float* momentum, int64_t count,
                       const RmsPropStep& step) {
  const Stopwatch stopwatch(&times_["RmsProp"], 0);
  ops_.RmsProp(w, g, square, momentum, count, step);
}

}  // namespace headrace
