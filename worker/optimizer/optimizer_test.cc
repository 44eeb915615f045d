#include "worker/optimizer/optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "plan/stage_memory.h"

namespace headrace {
namespace {

constexpr int kSteps = 5;

ParameterSpec Spec(const std::string& name, std::vector<int64_t> shape) {
  ParameterSpec spec;
  spec.name = name;
  spec.shape = std::move(shape);
  return spec;
}

// The gradient every step has: the test's own numbers.
float Gradient(int64_t step, size_t parameter, size_t i) {
  return std::sin(static_cast<float>(step * 7 + static_cast<int64_t>(parameter * 3 + i)));
}

// Two owned parameters (a matrix that decays, a vector that does not) and a borrowed one.
class OptimizerTest : public testing::Test {
 protected:
  OptimizerTest() {
    training_.set_steps(kSteps);
    training_.mutable_optimizer()->set_learning_rate(0.1);
    training_.mutable_optimizer()->set_weight_decay(0.2);
    Add(Spec("w", {3, 5}), false);
    Add(Spec("b", {7}), false);
    Add(Spec("head", {2, 2}), true);
  }

  void Add(const ParameterSpec& spec, bool borrowed) {
    Parameter parameter;
    parameter.spec = spec;
    parameter.borrowed = borrowed;
    parameter.weight =
        *arena_->Carve(MemoryKind::kWeights, spec.name, ElementType::kFloat32, spec.shape);
    parameter.gradient =
        *arena_->Carve(MemoryKind::kGradients, spec.name, ElementType::kFloat32, spec.shape);
    for (int64_t i = 0; i < parameter.weight.elements(); ++i) {
      parameter.weight.f32()[i] = InitialWeight(static_cast<size_t>(i));
    }
    parameters_.push_back(parameter);
  }

  static float InitialWeight(size_t i) { return 0.5f - 0.1f * static_cast<float>(i); }

  // Runs all steps, gradients times `scale`.
  void Run(double scale = 1) {
    auto optimizer = Optimizer::Create(training_, &parameters_, arena_.get(), ops_.get());
    ASSERT_TRUE(optimizer.ok()) << optimizer.status();
    for (int64_t step = 1; step <= kSteps; ++step) {
      for (size_t p = 0; p < parameters_.size(); ++p) {
        for (size_t i = 0; i < static_cast<size_t>(parameters_[p].gradient.elements()); ++i) {
          parameters_[p].gradient.f32()[i] = Gradient(step, p, i);
        }
      }
      (*optimizer)->Step(step, scale);
    }
  }

  // `reference(step, gradient, decay, &weight, state)` updates one number in double.
  template <typename Reference>
  void ExpectAsReference(const Reference& reference, double scale = 1) {
    for (size_t p = 0; p < 2; ++p) {
      const double decay = p == 0 ? 0.2 : 0;
      for (size_t i = 0; i < static_cast<size_t>(parameters_[p].weight.elements()); ++i) {
        double weight = InitialWeight(i);
        double state[2] = {0, 0};
        for (int64_t step = 1; step <= kSteps; ++step) {
          reference(step, scale * Gradient(step, p, i), decay, &weight, state);
        }
        EXPECT_NEAR(parameters_[p].weight.f32()[i], weight, 2e-6)
            << parameters_[p].spec.name << "[" << i << "]";
      }
    }
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(parameters_[2].weight.f32()[i], InitialWeight(i)) << "a borrowed weight moved";
    }
  }

  std::unique_ptr<Arena> arena_ = *Arena::Create(1 << 20);
  std::unique_ptr<Ops> ops_ = CreateCpuOps(1);
  std::vector<Parameter> parameters_;
  v1::TrainingSpec training_;
};

// The formulas of torch.optim.AdamW.
void ReferenceAdamW(int64_t step, double g, double decay, double* w, double* state) {
  *w -= 0.1 * decay * *w;
  state[0] = 0.9 * state[0] + 0.1 * g;
  state[1] = 0.999 * state[1] + 0.001 * g * g;
  const double m = state[0] / (1 - std::pow(0.9, step));
  const double v = state[1] / (1 - std::pow(0.999, step));
  *w -= 0.1 * m / (std::sqrt(v) + 1e-8);
}

TEST_F(OptimizerTest, AdamWIsPyTorchs) {
  training_.mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_ADAMW);
  Run();
  ExpectAsReference(ReferenceAdamW);
}

TEST_F(OptimizerTest, ClippingScalesEveryGradient) {
  training_.mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_ADAMW);
  Run(0.25);
  ExpectAsReference(ReferenceAdamW, 0.25);
}

TEST_F(OptimizerTest, SgdIsPyTorchs) {
  training_.mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_SGD);
  Run();
  ExpectAsReference(
      [](int64_t, double g, double decay, double* w, double*) { *w -= 0.1 * (g + decay * *w); });
}

TEST_F(OptimizerTest, NesterovIsPyTorchs) {
  training_.mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_SGD);
  training_.mutable_optimizer()->set_momentum(0.9);
  training_.mutable_optimizer()->set_nesterov(true);
  Run();
  ExpectAsReference([](int64_t step, double g, double decay, double* w, double* state) {
    g += decay * *w;
    state[0] = step == 1 ? g : 0.9 * state[0] + g;
    *w -= 0.1 * (g + 0.9 * state[0]);
  });
}

TEST_F(OptimizerTest, RmsPropIsPyTorchs) {
  training_.mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_RMSPROP);
  training_.mutable_optimizer()->set_momentum(0.5);
  training_.mutable_optimizer()->set_alpha(0.8);
  training_.mutable_optimizer()->set_epsilon(1e-6);
  Run();
  ExpectAsReference([](int64_t, double g, double decay, double* w, double* state) {
    g += decay * *w;
    state[0] = 0.8 * state[0] + 0.2 * g * g;
    state[1] = 0.5 * state[1] + g / (std::sqrt(state[0]) + 1e-6);
    *w -= 0.1 * state[1];
  });
}

TEST_F(OptimizerTest, TheRateFollowsTheScheduleAndTheGroup) {
  training_.mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_SGD);
  training_.mutable_learning_rate()->set_warmup_steps(kSteps);
  v1::ParameterGroup* group = training_.mutable_optimizer()->add_groups();
  group->set_match("*");
  group->set_learning_rate_scale(0.5);
  Run();
  ExpectAsReference([](int64_t step, double g, double decay, double* w, double*) {
    *w -= 0.5 * 0.1 * static_cast<double>(step) / kSteps * (g + decay * *w);
  });
}

TEST_F(OptimizerTest, CarvesWhatThePlanCounts) {
  LayerSpec layer;
  layer.parameters = {parameters_[0].spec, parameters_[1].spec};
  layer.borrowed = {parameters_[2].spec};
  struct Case {
    v1::OptimizerKind kind;
    double momentum;
    int64_t moments;
  };
  const Case cases[] = {{v1::OPTIMIZER_KIND_ADAMW, 0, 2},
                        {v1::OPTIMIZER_KIND_SGD, 0, 0},
                        {v1::OPTIMIZER_KIND_SGD, 0.9, 1},
                        {v1::OPTIMIZER_KIND_RMSPROP, 0, 1},
                        {v1::OPTIMIZER_KIND_RMSPROP, 0.9, 2}};
  int64_t before = 0;
  for (const Case& c : cases) {
    training_.mutable_optimizer()->set_kind(c.kind);
    training_.mutable_optimizer()->set_momentum(c.momentum);
    ASSERT_EQ(OptimizerMoments(training_.optimizer()), c.moments);
    ASSERT_TRUE(Optimizer::Create(training_, &parameters_, arena_.get(), ops_.get()).ok());
    const int64_t after = arena_->in_use(MemoryKind::kOptimizer);
    EXPECT_EQ(after - before, OptimizerBytes({layer}, c.moments))
        << v1::OptimizerKind_Name(c.kind) << " with momentum " << c.momentum;
    before = after;
  }
}

TEST_F(OptimizerTest, NamesWhatItKeepsOfEachOwnParameter) {
  struct Case {
    v1::OptimizerKind kind;
    double momentum;
    std::vector<std::string> names;
  };
  const Case cases[] = {{v1::OPTIMIZER_KIND_ADAMW, 0, {"m", "v"}},
                        {v1::OPTIMIZER_KIND_SGD, 0, {}},
                        {v1::OPTIMIZER_KIND_SGD, 0.9, {"momentum"}},
                        {v1::OPTIMIZER_KIND_RMSPROP, 0, {"square"}},
                        {v1::OPTIMIZER_KIND_RMSPROP, 0.9, {"square", "momentum"}}};
  for (const Case& c : cases) {
    training_.mutable_optimizer()->set_kind(c.kind);
    training_.mutable_optimizer()->set_momentum(c.momentum);
    const auto optimizer = *Optimizer::Create(training_, &parameters_, arena_.get(), ops_.get());
    ASSERT_EQ(optimizer->slots().size(), parameters_.size());
    EXPECT_TRUE(optimizer->slots()[2].empty()) << "a borrowed weight is its owner's to keep";
    for (size_t p = 0; p < 2; ++p) {
      std::vector<std::string> names;
      for (const OptimizerSlot& slot : optimizer->slots()[p]) {
        names.push_back(slot.name);
        EXPECT_EQ(slot.tensor.shape, parameters_[p].spec.shape);
      }
      EXPECT_EQ(names, c.names) << v1::OptimizerKind_Name(c.kind) << " with " << c.momentum;
    }
  }
}

// What is in the slots and the weights is all there is: another optimizer that is given them goes
// on with the same bits.
TEST_F(OptimizerTest, GoesOnFromItsSlots) {
  training_.mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_RMSPROP);
  training_.mutable_optimizer()->set_momentum(0.9);
  const auto step = [this](Optimizer* optimizer, int64_t number) {
    for (size_t p = 0; p < parameters_.size(); ++p) {
      for (size_t i = 0; i < static_cast<size_t>(parameters_[p].gradient.elements()); ++i) {
        parameters_[p].gradient.f32()[i] = Gradient(number, p, i);
      }
    }
    optimizer->Step(number, 1);
  };
  const auto whole = *Optimizer::Create(training_, &parameters_, arena_.get(), ops_.get());
  step(whole.get(), 1);
  step(whole.get(), 2);
  const auto next = *Optimizer::Create(training_, &parameters_, arena_.get(), ops_.get());
  for (size_t p = 0; p < 2; ++p) {
    for (size_t i = 0; i < whole->slots()[p].size(); ++i) {
      const Tensor& from = whole->slots()[p][i].tensor;
      std::copy_n(from.f32(), from.elements(), next->slots()[p][i].tensor.f32());
    }
  }
  const std::vector<float> at_two(parameters_[0].weight.f32(),
                                  parameters_[0].weight.f32() + parameters_[0].weight.elements());
  step(whole.get(), 3);
  const std::vector<float> want(parameters_[0].weight.f32(),
                                parameters_[0].weight.f32() + parameters_[0].weight.elements());
  std::copy(at_two.begin(), at_two.end(), parameters_[0].weight.f32());
  step(next.get(), 3);
  EXPECT_TRUE(std::equal(want.begin(), want.end(), parameters_[0].weight.f32()));
  EXPECT_NE(at_two, want);
}

TEST_F(OptimizerTest, AFullArenaNamesTheMoment) {
  training_.mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_ADAMW);
  const auto small = *Arena::Create(64);  // the first moment fits
  const auto optimizer = Optimizer::Create(training_, &parameters_, small.get(), ops_.get());
  EXPECT_EQ(optimizer.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(optimizer.status().message()), testing::HasSubstr("moment 2 of w"));
}

}  // namespace
}  // namespace headrace
