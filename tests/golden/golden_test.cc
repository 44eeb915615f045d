// Truth: a small model of each family, trained for 20 steps from PyTorch's weights on PyTorch's
// tokens, against what PyTorch computed (make_golden.py): loss within 1e-5 relative at every step,
// each gradient of step 1 within 1e-4 of its norm.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "plan/batch.h"
#include "worker/layers/stage_model.h"
#include "worker/optimizer/optimizer.h"

namespace headrace {
namespace {

using Json = nlohmann::json;

struct Golden {
  Json document;
  std::map<std::string, std::vector<float>> weights, gradients;
};

Golden Read(const std::string& family) {
  Golden golden;
  golden.document = Json::parse(std::ifstream("tests/golden/" + family + ".json"));
  std::ifstream file("tests/golden/" + family + ".bin", std::ios::binary);
  for (auto* tensors : {&golden.weights, &golden.gradients}) {
    for (const Json& tensor : golden.document["tensors"]) {
      int64_t elements = 1;
      for (int64_t s : tensor["shape"]) elements *= s;
      std::vector<float>& values = (*tensors)[tensor["name"]];
      values.resize(elements);
      file.read(reinterpret_cast<char*>(values.data()), 4 * elements);
    }
  }
  EXPECT_TRUE(file.good() && file.peek() == std::ifstream::traits_type::eof()) << family;
  return golden;
}

Model ReadModel(const Json& json) {
  v1::ModelSpec spec;
  for (const auto& [key, value] : json.items()) {
    const auto* field = spec.GetDescriptor()->FindFieldByName(key);
    const auto* reflection = spec.GetReflection();
    if (key == "family") {
      spec.set_family(value == "gpt2" ? v1::MODEL_FAMILY_GPT2 : v1::MODEL_FAMILY_LLAMA);
    } else if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_INT64) {
      reflection->SetInt64(&spec, field, value);
    } else {
      reflection->SetDouble(&spec, field, value);
    }
  }
  return ResolveModel(spec).value();
}

// AdamW at a constant rate, decay for matrices only as is the default.
v1::TrainingSpec ReadTraining(const Json& json) {
  v1::TrainingSpec training;
  training.set_steps(20);
  v1::OptimizerSpec& optimizer = *training.mutable_optimizer();
  optimizer.set_kind(v1::OPTIMIZER_KIND_ADAMW);
  optimizer.set_learning_rate(json["learning_rate"]);
  optimizer.set_weight_decay(json["weight_decay"]);
  optimizer.set_beta1(json["beta1"]);
  optimizer.set_beta2(json["beta2"]);
  optimizer.set_epsilon(json["epsilon"]);
  return training;
}

// The whole model as one stage, clipped as torch.nn.utils.clip_grad_norm_ does it.
class Trainer {
 public:
  explicit Trainer(const Golden& golden)
      : document_(golden.document), ops_(CreateCpuOps(1)), arena_(Arena::Create(8 << 20).value()) {
    stage_.model = ReadModel(document_["model"]);
    stage_.layers = BuildLayers(stage_.model);
    stage_.largest = {document_["batch"], document_["length"]};
    model_ = StageModel::Create(stage_, arena_.get(), ops_.get()).value();
    for (Parameter& p : model_->parameters()) {
      if (p.borrowed) continue;  // lies where its owner does
      const std::vector<float>& values = golden.weights.at(p.spec.name);
      EXPECT_EQ(static_cast<int64_t>(values.size()), p.weight.elements()) << p.spec.name;
      std::copy(values.begin(), values.end(), p.weight.f32());
    }
    const v1::TrainingSpec training = ReadTraining(document_["optimizer"]);
    optimizer_ =
        Optimizer::Create(training, &model_->parameters(), arena_.get(), ops_.get()).value();
  }

  // Gradients of step `step` (from 1), tie added. Returns the mean loss.
  double Gradients(int64_t step, int64_t micro_batches) {
    model_->ZeroGradients();
    const int64_t batch = stage_.largest.sequences, length = stage_.largest.length;
    double loss = 0;
    int64_t first = 0, index = 0;
    const std::vector<int64_t> sizes = SplitBatch(batch, micro_batches).value();
    for (int64_t sequences : sizes) {
      std::vector<int32_t> ids, targets;
      for (int64_t s = first; s < first + sequences; ++s) {
        const int64_t at = ((step - 1) * batch + s) * (length + 1);
        for (int64_t t = 0; t < length; ++t) {
          ids.push_back(document_["tokens"][at + t]);
          targets.push_back(document_["tokens"][at + t + 1]);
        }
      }
      MicroBatch mb{.shape = {sequences, length}, .step = step, .micro_batch = index++};
      mb.targets = targets.data();
      mb.loss = &loss;
      mb.loss_scale = 1.0f / static_cast<float>(batch * length);
      model_->Forward(mb, ids.data(), nullptr, kept_.data());
      model_->Backward(mb, ids.data(), kept_.data(), nullptr, nullptr);
      first += sequences;
    }
    AddTie();
    return loss / static_cast<double>(batch * length);
  }

  double Norm() {
    double sum = 0;
    for (const Parameter& p : Owned()) {
      double squared = 0;
      ops_->SquaredNorm(p.gradient.f32(), p.gradient.elements(), &squared);
      sum += squared;
    }
    return std::sqrt(sum);
  }

  void Update(int64_t step, double norm) {
    const double clip = document_["optimizer"]["clip_norm"];
    optimizer_->Step(step, std::min(1.0, clip / (norm + 1e-6)));
  }

  std::vector<Parameter> Owned() {
    std::vector<Parameter> owned;
    for (const Parameter& p : model_->parameters()) {
      if (!p.borrowed) owned.push_back(p);
    }
    return owned;
  }

 private:
  struct alignas(64) Line {
    char bytes[64];
  };

  void AddTie() {
    const Parameter& borrowed = model_->parameters().back();
    const Parameter& owner = model_->parameters().front();
    if (!borrowed.borrowed) return;
    ops_->Add(owner.gradient.f32(), borrowed.gradient.f32(), owner.gradient.f32(),
              owner.gradient.elements());
  }

  const Json document_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Arena> arena_;
  StageShape stage_;
  std::unique_ptr<StageModel> model_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<Line> kept_ = std::vector<Line>(8192);
};

double RelativeDistance(const Tensor& got, const std::vector<float>& expected) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double d = static_cast<double>(got.f32()[i]) - expected[i];
    difference += d * d;
    norm += static_cast<double>(expected[i]) * expected[i];
  }
  return std::sqrt(difference / norm);
}

class GoldenTest : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenTest, GradientsOfTheFirstStepAreThoseOfPyTorch) {
  const Golden golden = Read(GetParam());
  for (int64_t micro_batches : {1, 2}) {
    Trainer trainer(golden);
    trainer.Gradients(1, micro_batches);
    ASSERT_EQ(trainer.Owned().size(), golden.gradients.size());
    for (const Parameter& p : trainer.Owned()) {
      EXPECT_LT(RelativeDistance(p.gradient, golden.gradients.at(p.spec.name)), 1e-4)
          << p.spec.name << " in " << micro_batches << " micro-batches";
    }
  }
}

TEST_P(GoldenTest, LossOfTwentyStepsIsThatOfPyTorch) {
  const Golden golden = Read(GetParam());
  const Json& losses = golden.document["loss"];
  ASSERT_EQ(losses.size(), 20u);
  for (int64_t micro_batches : {1, 2}) {
    Trainer trainer(golden);
    for (int64_t step = 1; step <= 20; ++step) {
      const double loss = trainer.Gradients(step, micro_batches);
      const double norm = trainer.Norm();
      EXPECT_NEAR(loss / losses[step - 1].get<double>(), 1, 1e-5) << "step " << step;
      EXPECT_NEAR(norm / golden.document["gradient_norm"][step - 1].get<double>(), 1, 1e-4)
          << "step " << step;
      trainer.Update(step, norm);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenTest, ::testing::Values("gpt2", "llama"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace headrace
