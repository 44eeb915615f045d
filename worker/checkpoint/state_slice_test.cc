#include "worker/checkpoint/state_slice.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/safetensors.h"
#include "common/sha256.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/temp_dir.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Layers with a parameter each, whose values begin at `start`, with an optimizer that has some
// past.
class Stage {
 public:
  Stage(const v1::OptimizerSpec& optimizer, int64_t first_layer, int64_t end_layer, float start)
      : device_(HostDevice(*Arena::Create(1 << 20), CreateCpuOps(1))) {
    training_.set_steps(10);
    *training_.mutable_optimizer() = optimizer;
    for (int64_t layer = first_layer; layer < end_layer; ++layer) {
      Add(absl::StrCat("layer.", layer), layer, false, start);
    }
    if (end_layer == 4 && first_layer > 0) Add("head", 3, true, start);
    optimizer_ = *Optimizer::Create(training_, &parameters_, device_->arena(), device_->ops());
    float past = start;
    for (const auto& slots : optimizer_->slots()) {
      for (const OptimizerSlot& slot : slots) Fill(slot.tensor, past += 100);
    }
  }

  std::vector<StateTensor> state() const { return OwnState(parameters_, *optimizer_); }
  StateFile Write(const std::string& path, int64_t step) {
    const absl::StatusOr<int64_t> bytes = WriteState(path, state(), step, device_.get());
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    EXPECT_EQ(*bytes, static_cast<int64_t>(ReadFile(path)->size()));
    StateFile file;
    file.path = path;
    file.slice.set_sha256(*HashFile(path, nullptr));
    file.slice.set_first_layer(parameters_.front().layer);
    file.slice.set_end_layer(parameters_.back().layer + 1);
    return file;
  }
  absl::Status Load(const std::vector<StateFile>& files, int64_t step) {
    bad_slice.clear();
    return LoadState(files, step, &parameters_, *optimizer_, device_.get(), &bad_slice);
  }
  // By name, all there is.
  std::map<std::string, std::vector<float>> Values() const {
    std::map<std::string, std::vector<float>> values;
    for (const StateTensor& each : state()) {
      values[each.name].assign(each.tensor.f32(), each.tensor.f32() + each.tensor.elements());
    }
    return values;
  }
  const Parameter& last() const { return parameters_.back(); }

  std::string bad_slice;

 private:
  void Add(const std::string& name, int64_t layer, bool borrowed, float start) {
    Parameter parameter;
    parameter.spec.name = name;
    parameter.spec.shape = {2, 3};
    if (borrowed) parameter.spec.owner = "layer.0";
    parameter.layer = layer;
    parameter.borrowed = borrowed;
    parameter.weight = Carve(MemoryKind::kWeights, parameter.spec);
    parameter.gradient = Carve(MemoryKind::kGradients, parameter.spec);
    Fill(parameter.weight, start + 10 * static_cast<float>(layer));
    parameters_.push_back(parameter);
  }
  Tensor Carve(MemoryKind kind, const ParameterSpec& spec) {
    return *device_->arena()->Carve(kind, spec.name, ElementType::kFloat32, spec.shape);
  }
  static void Fill(const Tensor& tensor, float start) {
    for (int64_t i = 0; i < tensor.elements(); ++i) tensor.f32()[i] = start + static_cast<float>(i);
  }

  const std::unique_ptr<ComputeDevice> device_;
  v1::TrainingSpec training_;
  std::vector<Parameter> parameters_;
  std::unique_ptr<Optimizer> optimizer_;
};

v1::OptimizerSpec OptimizerOf(v1::OptimizerKind kind, double momentum) {
  v1::OptimizerSpec spec;
  spec.set_kind(kind);
  spec.set_momentum(momentum);
  return spec;
}

const v1::OptimizerSpec kAdamW = OptimizerOf(v1::OPTIMIZER_KIND_ADAMW, 0);

class StateSliceTest : public ::testing::Test {
 protected:
  const TempDir dir_;
};

TEST_F(StateSliceTest, HoldsWeightAndMomentsOfEachOwnParameterInLayerOrder) {
  Stage stage(kAdamW, 2, 4, 0);
  const StateFile written = stage.Write(dir_ / "a", 12);
  EXPECT_EQ(written.slice.sha256(), Sha256Hex(*ReadFile(dir_ / "a")));
  const auto file = SafetensorsFile::Open(dir_ / "a");
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<std::string> names;
  for (const NamedTensor& tensor : (*file)->tensors()) names.push_back(tensor.name);
  EXPECT_THAT(names, ElementsAre("layer.2", "optimizer.m.layer.2", "optimizer.v.layer.2", "layer.3",
                                 "optimizer.m.layer.3", "optimizer.v.layer.3"))
      << "and not the borrowed head";
  EXPECT_EQ((*file)->metadata().at("step"), "12");
  EXPECT_EQ((*file)->tensors()[0].data[1], 21);
}

TEST_F(StateSliceTest, IsLoadedByNameWhateverTheCutsAreForEveryOptimizer) {
  const v1::OptimizerSpec optimizers[] = {
      kAdamW, OptimizerOf(v1::OPTIMIZER_KIND_SGD, 0), OptimizerOf(v1::OPTIMIZER_KIND_SGD, 0.9),
      OptimizerOf(v1::OPTIMIZER_KIND_RMSPROP, 0), OptimizerOf(v1::OPTIMIZER_KIND_RMSPROP, 0.9)};
  const std::vector<std::vector<int64_t>> cuts = {{0, 4}, {0, 2, 4}, {0, 1, 3, 4}};
  for (const v1::OptimizerSpec& optimizer : optimizers) {
    Stage whole(optimizer, 0, 4, 1000);
    for (const auto& before : cuts) {
      std::vector<StateFile> files;
      for (size_t k = 0; k + 1 < before.size(); ++k) {
        Stage part(optimizer, before[k], before[k + 1], 0);
        ASSERT_TRUE(part.Load({whole.Write(dir_ / "whole", 7)}, 7).ok());
        files.push_back(part.Write(absl::StrCat(dir_.path(), "/", before.size(), "-", k), 7));
      }
      for (const auto& after : cuts) {
        for (size_t k = 0; k + 1 < after.size(); ++k) {
          Stage part(optimizer, after[k], after[k + 1], 0);
          const absl::Status loaded = part.Load(files, 7);
          ASSERT_TRUE(loaded.ok()) << loaded;
          const auto want = whole.Values();
          for (const auto& [name, values] : part.Values()) {
            EXPECT_EQ(values, want.at(name)) << name << ", " << optimizer.ShortDebugString();
          }
          if (part.last().borrowed) {
            EXPECT_EQ(part.last().weight.f32()[0], 1000) << "its owner's weight";
          }
        }
      }
    }
  }
}

TEST_F(StateSliceTest, NamesTheSliceThatIsDamagedOrOfAnotherStep) {
  Stage first(kAdamW, 0, 2, 0), second(kAdamW, 2, 4, 0), whole(kAdamW, 0, 4, 5);
  const std::vector<StateFile> files = {first.Write(dir_ / "a", 7), second.Write(dir_ / "b", 7)};
  ASSERT_TRUE(whole.Load(files, 7).ok());
  EXPECT_EQ(whole.bad_slice, "");

  const std::string good = *ReadFile(files[1].path);
  ASSERT_TRUE(WriteFileAtomically(files[1].path, good.substr(0, good.size() - 1)).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(whole.Load(files, 7)));
  EXPECT_EQ(whole.bad_slice, files[1].slice.sha256());

  second.Write(files[1].path, 8);
  const absl::Status other = whole.Load(files, 7);
  EXPECT_THAT(std::string(other.message()),
              HasSubstr("is not the state after step 7: its header says step 8"));
  EXPECT_EQ(whole.bad_slice, files[1].slice.sha256());
}

TEST_F(StateSliceTest, NamesTheTensorThatIsMissingAndTheSliceThatShouldHaveIt) {
  Stage first(kAdamW, 0, 2, 0), without(OptimizerOf(v1::OPTIMIZER_KIND_SGD, 0), 2, 4, 0);
  Stage whole(kAdamW, 0, 4, 5);
  const std::vector<StateFile> files = {first.Write(dir_ / "a", 7), without.Write(dir_ / "b", 7)};
  const absl::Status missing = whole.Load(files, 7);
  EXPECT_TRUE(absl::IsNotFound(missing));
  EXPECT_THAT(std::string(missing.message()), HasSubstr("'optimizer.m.layer.2'"));
  EXPECT_EQ(whole.bad_slice, files[1].slice.sha256());
}

TEST_F(StateSliceTest, AFullDiskIsAnErrorThatNamesThePath) {
  Stage stage(kAdamW, 0, 4, 0);
  const std::vector<StateTensor> state = stage.state();
  const std::unique_ptr<ComputeDevice> device = HostDevice(*Arena::Create(0), CreateCpuOps(1));
  ASSERT_EQ(symlink("/dev/full", (dir_ / "a").c_str()), 0);
  const absl::Status full = WriteState(dir_ / "a", state, 1, device.get()).status();
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_THAT(std::string(full.message()), HasSubstr(absl::StrCat("cannot write ", dir_ / "a")));

  const absl::Status nowhere = WriteState(dir_ / "no/a", state, 1, device.get()).status();
  EXPECT_THAT(std::string(nowhere.message()), HasSubstr("cannot create"));
}

// The file is gone where the disk turns out to be full on the way.
TEST_F(StateSliceTest, NothingIsLeftOfAFileThatDidNotFit) {
  Stage stage(kAdamW, 0, 4, 0);
  signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 700;
  const std::unique_ptr<ComputeDevice> device = HostDevice(*Arena::Create(0), CreateCpuOps(1));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status status = WriteState(dir_ / "a", stage.state(), 1, device.get()).status();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot write"));
  EXPECT_NE(access((dir_ / "a").c_str(), F_OK), 0);
}

TEST_F(StateSliceTest, HashingEndsWhenItIsTold) {
  Cancellation cancellation;
  cancellation.Cancel();
  ASSERT_TRUE(WriteFileAtomically(dir_ / "a", "a").ok());
  EXPECT_TRUE(absl::IsCancelled(HashFile(dir_ / "a", &cancellation).status()));
  EXPECT_THAT(std::string(HashFile(dir_ / "none", nullptr).status().message()), HasSubstr("none"));
}

}  // namespace
}  // namespace headrace
