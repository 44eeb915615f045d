// The optimizers, on more tensors than one launch takes and of odd sizes.
#include <memory>

#include "worker/backend/cuda/kernels.h"
#include "worker/backend/cuda/kernels_testing.h"
#include "worker/backend/cuda/update.h"

namespace headrace::cuda {
namespace {

struct Parameter {
  explicit Parameter(int64_t count, uint32_t seed)
      : w(RandomValues(count, seed)),
        g(RandomValues(count, seed + 1)),
        state(RandomValues(count, seed + 2)),
        state2(RandomValues(count, seed + 3)),
        dw(w, 1),
        dg(g),
        dstate(Positive(state)),
        dstate2(Positive(state2)),
        half(count) {}
  static Doubles& Positive(Doubles& values) {
    for (double& v : values) v = std::abs(v);
    return values;
  }
  UpdatedTensor tensor() {
    return {dw.get(),      dg.get(),   dstate.get(),
            dstate2.get(), half.get(), static_cast<int64_t>(w.size())};
  }

  Doubles w, g, state, state2;
  OnDevice<float> dw, dg, dstate, dstate2;
  OnDevice<uint16_t> half;
};

// Of one element, in double: the new w; the states in place.
using Rule = double (*)(double w, double g, double& state, double& state2);

class Updates : public ::testing::Test {
 protected:
  Updates() {
    for (int i = 0; i < kTensorsOfLaunch + 3; ++i) {
      parameters_.push_back(
          std::make_unique<Parameter>(i == 0 ? 1027 : i % 9 + 1, static_cast<uint32_t>(10 * i)));
      tensors_.push_back(parameters_.back()->tensor());
    }
  }

  void Expect(Rule rule) {
    for (auto& p : parameters_) {
      for (size_t i = 0; i < p->w.size(); ++i) {
        p->w[i] = rule(p->w[i], p->g[i], p->state[i], p->state2[i]);
      }
      ExpectClose(p->dw.doubles(), p->w, 1e-6, "w");
      ExpectClose(p->dstate.doubles(), p->state, 1e-6, "state");
      ExpectClose(p->dstate2.doubles(), p->state2, 1e-6, "state2");
      const std::vector<uint16_t> half = p->half.Read();
      const std::vector<float> w = p->dw.Read();
      for (size_t i = 0; i < half.size(); ++i) {
        EXPECT_EQ(half[i], __bfloat16_as_ushort(__float2bfloat16(w[i])));
      }
    }
  }

  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::vector<UpdatedTensor> tensors_;
};

TEST_F(Updates, OfAdamWDecayThenStep) {
  const AdamWStep step{.learning_rate = 0.1f,
                       .beta1 = 0.9,
                       .beta2 = 0.999,
                       .epsilon = 1e-8f,
                       .weight_decay = 0.3f,
                       .bias_correction1 = 0.19f,
                       .bias_correction2 = 0.002f,
                       .gradient_scale = 0.5f};
  EXPECT_CUDA_OK(AdamW(tensors_, step, nullptr));
  Expect([](double w, double g, double& m, double& v) {
    m = 0.9 * m + 0.1 * g * 0.5;
    v = 0.999 * v + 0.001 * g * 0.5 * g * 0.5;
    return w * (1 - 0.1 * 0.3) - 0.1 * (m / 0.19) / (std::sqrt(v / 0.002) + 1e-8);
  });
}

TEST_F(Updates, OfSgdKeepMomentum) {
  const SgdStep step{.learning_rate = 0.1f,
                     .weight_decay = 0.3f,
                     .momentum = 0.9f,
                     .gradient_scale = 0.5f,
                     .nesterov = true};
  EXPECT_CUDA_OK(Sgd(tensors_, step, nullptr));
  Expect([](double w, double g, double& buffer, double&) {
    const double gradient = g * 0.5 + 0.3 * w;
    buffer = 0.9 * buffer + gradient;
    return w - 0.1 * (gradient + 0.9 * buffer);
  });
}

TEST_F(Updates, OfSgdBeginWithTheGradient) {
  const SgdStep step{.learning_rate = 0.1f, .momentum = 0.9f, .first = true};
  EXPECT_CUDA_OK(Sgd(tensors_, step, nullptr));
  Expect([](double w, double g, double& buffer, double&) {
    buffer = g;
    return w - 0.1 * buffer;
  });
}

TEST_F(Updates, OfPlainSgdKeepNothing) {
  for (UpdatedTensor& t : tensors_) t.state = t.state2 = nullptr;
  EXPECT_CUDA_OK(Sgd(tensors_, {.learning_rate = 0.1f}, nullptr));
  Expect([](double w, double g, double&, double&) { return w - 0.1 * g; });
}

TEST_F(Updates, OfRmsPropDivideByTheRoot) {
  const RmsPropStep step{.learning_rate = 0.1f,
                         .weight_decay = 0.3f,
                         .alpha = 0.99,
                         .epsilon = 1e-3f,
                         .momentum = 0.9f,
                         .gradient_scale = 0.5f};
  EXPECT_CUDA_OK(RmsProp(tensors_, step, nullptr));
  Expect([](double w, double g, double& square, double& buffer) {
    const double gradient = g * 0.5 + 0.3 * w;
    square = 0.99 * square + 0.01 * gradient * gradient;
    buffer = 0.9 * buffer + gradient / (std::sqrt(square) + 1e-3);
    return w - 0.1 * buffer;
  });
}

}  // namespace
}  // namespace headrace::cuda
