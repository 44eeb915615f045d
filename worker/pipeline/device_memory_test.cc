// Stages whose tensors lie in a device's memory of their own: the same bits as on the CPU, the
// memory that was predicted, and an error that says where when the device is lost.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/temp_dir.h"
#include "worker/pipeline/distant_device.h"
#include "worker/pipeline/in_memory_pipeline.h"
#include "worker/pipeline/small_jobs.h"

namespace headrace {
namespace {

using testing::DistantDevice;
using testing::Gpt2Job;
using ::testing::HasSubstr;
using testing::InMemoryPipeline;
using testing::LlamaJob;
using testing::StageResult;

class DeviceMemory : public ::testing::Test {
 protected:
  DeviceMemory() { testing::WriteTokens(tokens_, 600, testing::kVocabulary); }

  // On `num_stages` stages, of which those in `distant` are on devices.
  std::vector<StageResult> Run(v1::StageAssignment assignment, int num_stages,
                               const std::vector<int>& distant, bool recompute = true) {
    testing::FillPlan(&assignment, testing::kLayers, num_stages, /*one_f_one_b=*/true,
                      [&](int) { return recompute; });
    logs_.assign(static_cast<size_t>(num_stages), {});
    std::map<int, DeviceOpener> openers;
    for (const int k : distant) {
      logs_[k].good_copies = good_copies_;
      openers[k] = DistantDevice::Opener(&logs_[k]);
    }
    return InMemoryPipeline(assignment, tokens_, {.devices = openers}).Run();
  }

  static void ExpectEqual(const std::vector<StageResult>& got, const std::vector<StageResult>& want,
                          const std::string& what) {
    std::string got_weights, want_weights;
    for (const StageResult& result : got) {
      ASSERT_TRUE(result.status.ok()) << what << ": " << result.status;
      got_weights += result.weights;
    }
    for (const StageResult& result : want) want_weights += result.weights;
    EXPECT_TRUE(got_weights == want_weights) << what;
    ASSERT_EQ(got.back().steps.size(), want.back().steps.size());
    for (size_t i = 0; i < got.back().steps.size(); ++i) {
      EXPECT_EQ(got.back().steps[i].loss(), want.back().steps[i].loss()) << what;
      EXPECT_EQ(got.back().steps[i].validation_loss(), want.back().steps[i].validation_loss());
    }
  }

  const TempDir dir_;
  const std::string tokens_ = dir_ / "tokens";
  std::vector<DistantDevice::Log> logs_;
  int good_copies_ = 1 << 30;
};

TEST_F(DeviceMemory, GivesTheBitsOfHostMemory) {
  v1::StageAssignment bf16 = Gpt2Job();
  bf16.mutable_spec()->mutable_pipeline()->set_boundary_dtype(v1::BOUNDARY_DTYPE_BF16);
  for (const v1::StageAssignment& job : {Gpt2Job(), LlamaJob(), bf16}) {
    for (const int num_stages : {1, 3}) {
      for (const bool recompute : {true, false}) {
        const auto host = Run(job, num_stages, {}, recompute);
        const std::vector<std::vector<int>> placements =
            num_stages == 1 ? std::vector<std::vector<int>>{{0}}
                            : std::vector<std::vector<int>>{{0, 1, 2}, {1}, {0, 2}};
        for (const auto& distant : placements) {
          ExpectEqual(Run(job, num_stages, distant, recompute), host,
                      absl::StrCat("K=", num_stages, ", ", distant.size(), " on devices"));
        }
      }
    }
  }
}

TEST_F(DeviceMemory, IsTakenAsPredicted) {
  const auto results = Run(Gpt2Job(), 3, {0, 1, 2});
  for (size_t k = 0; k < results.size(); ++k) {
    ASSERT_TRUE(results[k].status.ok()) << results[k].status;
    const v1::MemoryBytes& peak = results[k].peak;
    const StageBytes& predicted = results[k].predicted;
    EXPECT_EQ(peak.weights(), predicted.weights) << k;
    EXPECT_EQ(peak.gradients(), predicted.gradients) << k;
    EXPECT_EQ(peak.optimizer(), predicted.optimizer) << k;
    EXPECT_EQ(peak.stash(), predicted.stash) << k;
    EXPECT_EQ(peak.workspace(), predicted.workspace) << k;
    EXPECT_LE(peak.link(), predicted.link) << k;
    EXPECT_GT(logs_[k].needs.staging_bytes, 0) << k;
    EXPECT_GT(logs_[k].needs.scratch_bytes, 0) << k;
  }
}

TEST_F(DeviceMemory, ServesGenerateToo) {
  v1::StageAssignment assignment = Gpt2Job();
  v1::GenerateRequest* request = assignment.mutable_generate()->mutable_request();
  for (const int64_t token : {3, 1, 4}) request->add_prompt(token);
  request->set_temperature(1);
  request->set_seed(5);
  request->set_max_tokens(12);
  assignment.add_weights()->set_sha256(std::string(64, 'b'));
  const std::vector<int32_t> drawn = Run(assignment, 2, {}).back().drawn;
  EXPECT_EQ(drawn.size(), 12u);
  EXPECT_EQ(Run(assignment, 2, {0, 1}).back().drawn, drawn);
}

TEST_F(DeviceMemory, ThatIsLostIsNamedWithItsStageStepAndMicroBatch) {
  good_copies_ = 20;
  const auto results = Run(Gpt2Job(), 2, {0});
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[0].status.code(), absl::StatusCode::kInternal);
  const std::string message(results[0].status.message());
  EXPECT_THAT(message, HasSubstr("worker w0, stage 0, step "));
  EXPECT_THAT(message, HasSubstr("the distant device is lost"));
  EXPECT_FALSE(results[1].status.ok()) << "its neighbour was told";
}

}  // namespace
}  // namespace headrace
