#include "worker/backend/ops_testing.h"

namespace headrace {
namespace {

constexpr double kBound = 1e-6;  // of 5 steps in fp32

class Updates : public ::testing::TestWithParam<int> {
 protected:
  std::unique_ptr<Ops> ops_ = CreateCpuOps(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Threads, Updates, ::testing::Values(1, 2));

constexpr int64_t kCounts[] = {1, 17, 4097, 10007};
constexpr int kSteps = 5;
constexpr double kScale = 0.25;  // of gradients

// The formulas of PyTorch's documentation, in double.
TEST_P(Updates, AdamWIsTorchs) {
  const double lr = 0.01, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, decay = 0.1;
  for (int64_t count : kCounts) {
    Doubles w = RandomValues(count, 1), m(w.size()), v(w.size());
    Buffer fw(w), fm(m), fv(v);
    for (int step = 1; step <= kSteps; ++step) {
      const Doubles g = RandomValues(count, 10 + static_cast<uint32_t>(step));
      Buffer fg(g);
      const double correction1 = 1 - std::pow(beta1, step), correction2 = 1 - std::pow(beta2, step);
      AdamWStep s{static_cast<float>(lr),
                  beta1,
                  beta2,
                  static_cast<float>(epsilon),
                  static_cast<float>(decay),
                  static_cast<float>(correction1),
                  static_cast<float>(correction2),
                  static_cast<float>(kScale)};
      const UpdatedTensor t{fw.data(), fg.data(), fm.data(), fv.data(), nullptr, count};
      ops_->AdamW({&t, 1}, s);
      for (size_t i = 0; i < w.size(); ++i) {
        const double gi = kScale * g[i];
        w[i] *= 1 - lr * decay;
        m[i] = beta1 * m[i] + (1 - beta1) * gi;
        v[i] = beta2 * v[i] + (1 - beta2) * gi * gi;
        const double denominator = std::sqrt(v[i]) / std::sqrt(correction2) + epsilon;
        w[i] -= lr / correction1 * m[i] / denominator;
      }
    }
    ExpectClose(fw, w, kBound, "weights");
    ExpectClose(fm, m, kBound, "first moments");
    ExpectClose(fv, v, kBound, "second moments");
  }
}

TEST_P(Updates, SgdIsTorchs) {
  struct Case {
    double momentum;
    bool nesterov;
  };
  const double lr = 0.1, decay = 0.01;
  for (const Case& c : {Case{0, false}, Case{0.9, false}, Case{0.9, true}}) {
    for (int64_t count : kCounts) {
      Doubles w = RandomValues(count, 1), buffer(w.size());
      Buffer fw(w), fb(count);  // the buffer holds NaN: the first step must not read it
      for (int step = 1; step <= kSteps; ++step) {
        const Doubles g = RandomValues(count, 10 + static_cast<uint32_t>(step));
        Buffer fg(g);
        SgdStep s{static_cast<float>(lr),
                  static_cast<float>(decay),
                  static_cast<float>(c.momentum),
                  static_cast<float>(kScale),
                  c.nesterov,
                  step == 1};
        float* const state = c.momentum == 0 ? nullptr : fb.data();
        const UpdatedTensor t{fw.data(), fg.data(), state, nullptr, nullptr, count};
        ops_->Sgd({&t, 1}, s);
        for (size_t i = 0; i < w.size(); ++i) {
          double d = kScale * g[i] + decay * w[i];
          if (c.momentum != 0) {
            buffer[i] = step == 1 ? d : c.momentum * buffer[i] + d;
            d = c.nesterov ? d + c.momentum * buffer[i] : buffer[i];
          }
          w[i] -= lr * d;
        }
      }
      const std::string name =
          "momentum " + std::to_string(c.momentum) + (c.nesterov ? " nesterov" : "");
      ExpectClose(fw, w, kBound, name);
      if (c.momentum != 0) ExpectClose(fb, buffer, kBound, "buffer, " + name);
    }
  }
}

TEST_P(Updates, RmsPropIsTorchs) {
  const double lr = 0.01, decay = 0.01, alpha = 0.99, epsilon = 1e-8;
  for (double momentum : {0.0, 0.9}) {
    for (int64_t count : kCounts) {
      Doubles w = RandomValues(count, 1), square(w.size()), buffer(w.size());
      Buffer fw(w), fs(square), fb(buffer);
      for (int step = 1; step <= kSteps; ++step) {
        const Doubles g = RandomValues(count, 10 + static_cast<uint32_t>(step));
        Buffer fg(g);
        RmsPropStep s{
            static_cast<float>(lr),      static_cast<float>(decay),    alpha,
            static_cast<float>(epsilon), static_cast<float>(momentum), static_cast<float>(kScale)};
        float* const state2 = momentum == 0 ? nullptr : fb.data();
        const UpdatedTensor t{fw.data(), fg.data(), fs.data(), state2, nullptr, count};
        ops_->RmsProp({&t, 1}, s);
        for (size_t i = 0; i < w.size(); ++i) {
          const double d = kScale * g[i] + decay * w[i];
          square[i] = alpha * square[i] + (1 - alpha) * d * d;
          const double change = d / (std::sqrt(square[i]) + epsilon);
          buffer[i] = momentum * buffer[i] + change;
          w[i] -= lr * (momentum != 0 ? buffer[i] : change);
        }
      }
      // 1 − alpha is 0.01 less 1e-9 in fp32: 1e-6 of the mean square.
      ExpectClose(fw, w, 4 * kBound, "momentum " + std::to_string(momentum));
      ExpectClose(fs, square, 4 * kBound, "mean squares");
    }
  }
}

}  // namespace
}  // namespace headrace
