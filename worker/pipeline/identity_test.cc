// Headrace's first promise, in one process: a job's losses and weights are the same bits for every
// number of stages, schedule and recompute mode. (tests/integration repeats it with real
// processes.)
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/sha256.h"
#include "common/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/temp_dir.h"
#include "worker/pipeline/in_memory_pipeline.h"
#include "worker/pipeline/small_jobs.h"

namespace headrace {
namespace {

using testing::FillPlan;
using testing::Gpt2Job;
using ::testing::HasSubstr;
using testing::InMemoryPipeline;
using testing::kLayers;
using testing::kVocabulary;
using testing::LlamaJob;
using testing::StageResult;

enum class Mode { kAlways, kExceptLast, kNever };

// What a run computed, as far as the promise goes.
struct Numbers {
  std::string losses;   // of every step, with validation, norm: exact, as hexadecimal floats
  std::string weights;  // SHA-256 over all parameters in layer order

  friend bool operator==(const Numbers&, const Numbers&) = default;
};

std::ostream& operator<<(std::ostream& out, const Numbers& n) {
  return out << n.losses << " weights " << n.weights.substr(0, 12);
}

class IdentityTest : public ::testing::Test {
 protected:
  IdentityTest() { testing::WriteTokens(tokens_, 600, kVocabulary); }

  std::vector<StageResult> RunStages(v1::StageAssignment assignment, int num_stages,
                                     bool one_f_one_b, Mode mode) {
    const int last = static_cast<int>(assignment.spec().training().micro_batches()) - 1;
    FillPlan(&assignment, kLayers, num_stages, one_f_one_b, [&](int m) {
      return mode == Mode::kAlways || (mode == Mode::kExceptLast && m < last);
    });
    std::vector<StageResult> results = InMemoryPipeline(assignment, tokens_).Run();
    for (const StageResult& result : results) EXPECT_TRUE(result.status.ok()) << result.status;
    return results;
  }

  static Numbers Summarise(const std::vector<StageResult>& results) {
    Numbers numbers;
    std::string weights;
    for (const StageResult& result : results) weights += result.weights;
    numbers.weights = Sha256Hex(weights);
    for (const v1::StageStep& step : results.back().steps) {
      char text[128];
      snprintf(text, sizeof(text), "%a %a %a; ", step.loss(), step.gradient_norm(),
               step.validation_loss());
      numbers.losses += text;
    }
    return numbers;
  }

  void ExpectSameNumbersEverywhere(const v1::StageAssignment& assignment) {
    const Numbers reference = Summarise(RunStages(assignment, 1, false, Mode::kNever));
    for (int k = 1; k <= kLayers; ++k) {
      for (bool one_f_one_b : {false, true}) {
        for (Mode mode : {Mode::kAlways, Mode::kExceptLast, Mode::kNever}) {
          EXPECT_EQ(Summarise(RunStages(assignment, k, one_f_one_b, mode)), reference)
              << "K = " << k << (one_f_one_b ? ", 1f1b" : ", gpipe") << ", recompute mode "
              << static_cast<int>(mode);
        }
      }
    }
  }

  const TempDir dir_;
  const std::string tokens_ = dir_ / "tokens";
};

TEST_F(IdentityTest, Gpt2WithTiesAndDropoutGivesTheSameBitsForEveryPlan) {
  ExpectSameNumbersEverywhere(Gpt2Job());
}

TEST_F(IdentityTest, LlamaGivesTheSameBitsForEveryPlan) { ExpectSameNumbersEverywhere(LlamaJob()); }

TEST_F(IdentityTest, FewerMicroBatchesThanStagesIsOrdinary) {
  v1::StageAssignment assignment = Gpt2Job();
  for (int m : {1, 2}) {
    assignment.mutable_spec()->mutable_training()->set_micro_batches(m);
    ExpectSameNumbersEverywhere(assignment);
  }
}

v1::StageAssignment WithBf16Boundaries(v1::StageAssignment assignment) {
  assignment.mutable_spec()->mutable_pipeline()->set_boundary_dtype(v1::BOUNDARY_DTYPE_BF16);
  return assignment;
}

TEST_F(IdentityTest, Bf16BoundariesGiveTheSameBitsForEveryScheduleOfOnePartition) {
  for (const v1::StageAssignment& fp32 : {Gpt2Job(), LlamaJob()}) {
    const v1::StageAssignment bf16 = WithBf16Boundaries(fp32);
    for (int k = 2; k <= kLayers; ++k) {
      const Numbers reference = Summarise(RunStages(bf16, k, false, Mode::kNever));
      for (bool one_f_one_b : {false, true}) {
        for (Mode mode : {Mode::kAlways, Mode::kExceptLast, Mode::kNever}) {
          EXPECT_EQ(Summarise(RunStages(bf16, k, one_f_one_b, mode)), reference)
              << "K = " << k << (one_f_one_b ? ", 1f1b" : ", gpipe") << ", recompute mode "
              << static_cast<int>(mode);
        }
      }
    }
  }
}

TEST_F(IdentityTest, Bf16BoundariesChangeNothingWhereThereAreNone) {
  EXPECT_EQ(Summarise(RunStages(WithBf16Boundaries(Gpt2Job()), 1, false, Mode::kAlways)),
            Summarise(RunStages(Gpt2Job(), 1, false, Mode::kAlways)));
}

TEST_F(IdentityTest, Bf16BoundariesHalveTheBytesAndStayNearTheNumbers) {
  for (const v1::StageAssignment& assignment : {Gpt2Job(), LlamaJob()}) {
    const auto fp32 = RunStages(assignment, 3, true, Mode::kAlways);
    const auto bf16 = RunStages(WithBf16Boundaries(assignment), 3, true, Mode::kAlways);
    EXPECT_FALSE(Summarise(bf16) == Summarise(fp32));
    for (size_t s = 0; s < fp32.back().steps.size(); ++s) {
      const double loss = fp32.back().steps[s].loss();
      EXPECT_NEAR(bf16.back().steps[s].loss(), loss, 0.01 * loss) << "step " << s + 1;
    }
    for (size_t k = 0; k < fp32.size(); ++k) {
      EXPECT_GT(bf16[k].boundary_bytes, 0) << "stage " << k;
      EXPECT_EQ(2 * bf16[k].boundary_bytes, fp32[k].boundary_bytes) << "stage " << k;
      EXPECT_EQ(bf16[k].peak.stash(), bf16[k].predicted.stash) << "stage " << k;
      EXPECT_EQ(bf16[k].peak.workspace(), bf16[k].predicted.workspace) << "stage " << k;
      EXPECT_LE(bf16[k].peak.link(), bf16[k].predicted.link) << "stage " << k;
      EXPECT_LT(bf16[k].predicted.link, fp32[k].predicted.link) << "stage " << k;
    }
  }
}

// Products by the processor's instructions where it has them; emulated everywhere.
std::vector<v1::StageAssignment> WithBf16Products(v1::StageAssignment assignment) {
  v1::TrainingSpec* training = assignment.mutable_spec()->mutable_training();
  training->set_precision(v1::PRECISION_BF16);
  std::vector<v1::StageAssignment> both;
  if (CpuMultipliesBf16()) both.push_back(assignment);
  training->set_bf16_emulate(true);
  both.push_back(assignment);
  return both;
}

TEST_F(IdentityTest, Bf16ProductsGiveTheSameBitsForEveryPlan) {
  for (const v1::StageAssignment& fp32 : {Gpt2Job(), LlamaJob()}) {
    for (const v1::StageAssignment& bf16 : WithBf16Products(fp32)) {
      ExpectSameNumbersEverywhere(bf16);
    }
  }
}

TEST_F(IdentityTest, Bf16ProductsStayNearTheNumbersAndTakeTheMemoryPredicted) {
  for (const v1::StageAssignment& assignment : {Gpt2Job(), LlamaJob()}) {
    const auto fp32 = RunStages(assignment, 3, true, Mode::kAlways);
    for (const v1::StageAssignment& products : WithBf16Products(assignment)) {
      const auto bf16 = RunStages(products, 3, true, Mode::kAlways);
      EXPECT_FALSE(Summarise(bf16) == Summarise(fp32));
      for (size_t s = 0; s < fp32.back().steps.size(); ++s) {
        const double loss = fp32.back().steps[s].loss();
        EXPECT_NEAR(bf16.back().steps[s].loss(), loss, 0.01 * loss) << "step " << s + 1;
      }
      for (size_t k = 0; k < fp32.size(); ++k) {
        EXPECT_EQ(bf16[k].peak.workspace(), fp32[k].peak.workspace() + kBf16PanelBytes);
        EXPECT_EQ(bf16[k].peak.workspace(), bf16[k].predicted.workspace) << "stage " << k;
        EXPECT_EQ(bf16[k].peak.weights(), fp32[k].peak.weights()) << "stage " << k;
        EXPECT_EQ(bf16[k].peak.stash(), fp32[k].peak.stash()) << "stage " << k;
      }
    }
  }
}

TEST_F(IdentityTest, TrainsAtAll) {
  v1::StageAssignment assignment = LlamaJob();
  assignment.mutable_spec()->mutable_training()->set_steps(30);
  const auto results = RunStages(assignment, 2, true, Mode::kAlways);
  ASSERT_EQ(results.back().steps.size(), 30u);
  EXPECT_LT(results.back().steps.back().loss(), 0.9 * results.back().steps.front().loss());
}

TEST_F(IdentityTest, DifferentSeedsGiveDifferentNumbers) {
  v1::StageAssignment assignment = Gpt2Job();
  const Numbers one = Summarise(RunStages(assignment, 1, false, Mode::kNever));
  assignment.mutable_spec()->mutable_training()->set_seed(12);
  EXPECT_FALSE(Summarise(RunStages(assignment, 1, false, Mode::kNever)) == one);
}

// GPipe §2.3: with recompute the stash is the boundaries of the micro-batches in flight and one
// working set. The bytes are worked out here from shapes alone.
TEST_F(IdentityTest, MeasuredMemoryIsWhatWasPredictedByteForByte) {
  const auto round = [](int64_t floats) { return (4 * floats + 63) / 64 * 64; };
  constexpr int64_t kTokens = 2 * 7, kWidth = 16, kHeads = 2, kMicroBatches = 3;
  const int64_t boundary = round(kTokens * kWidth);
  const int64_t ids = round(kTokens);
  const int64_t norm = 2 * round(kTokens) + round(kTokens * kWidth);  // mean, rstd, output
  const int64_t block = 2 * norm + round(kTokens * 3 * kWidth) + 2 * round(kTokens * kWidth) +
                        round(2 * kHeads * 7) + round(kTokens * 4 * kWidth);
  struct Case {
    bool one_f_one_b;
    Mode mode;
    int64_t stash[2];
  };
  // Stages: embedding, block 1 | block 2, head. Working set: what blocks save and the inner
  // boundary.
  const int64_t set0 = boundary + block, set1 = block + boundary;
  const Case cases[] = {
      {false, Mode::kAlways, {kMicroBatches * ids + set0, kMicroBatches * boundary + set1}},
      {false, Mode::kNever, {kMicroBatches * (ids + set0), kMicroBatches * (boundary + set1)}},
      {true, Mode::kAlways, {2 * ids + set0, boundary + set1}},
      {true, Mode::kNever, {2 * (ids + set0), boundary + set1}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(
        absl::StrCat(c.one_f_one_b ? "1f1b" : "gpipe", ", mode ", static_cast<int>(c.mode)));
    const auto results = RunStages(Gpt2Job(), 2, c.one_f_one_b, c.mode);
    ASSERT_EQ(results.size(), 2u);
    for (int k = 0; k < 2; ++k) {
      const v1::MemoryBytes& peak = results[k].peak;
      const StageBytes& predicted = results[k].predicted;
      EXPECT_EQ(peak.stash(), c.stash[k]) << "stage " << k;
      EXPECT_EQ(peak.stash(), predicted.stash) << "stage " << k;
      EXPECT_EQ(peak.weights(), predicted.weights) << "stage " << k;
      EXPECT_EQ(peak.gradients(), predicted.gradients) << "stage " << k;
      EXPECT_EQ(peak.optimizer(), predicted.optimizer) << "stage " << k;
      EXPECT_EQ(peak.workspace(), predicted.workspace) << "stage " << k;
      EXPECT_LE(peak.link(), predicted.link) << "stage " << k;
      EXPECT_GT(peak.link(), 0) << "stage " << k;
    }
  }
}

TEST_F(IdentityTest, EveryTensorHashIsTheSameForEveryPlan) {
  v1::StageAssignment assignment = Gpt2Job();
  assignment.mutable_options()->set_hash_tensors(true);
  const auto collect = [](const std::vector<StageResult>& results) {
    std::map<std::string, uint64_t> hashes;
    for (const StageResult& result : results) {
      for (const v1::StageStep& step : result.steps) {
        for (int i = 0; i < step.tensor_hashes().names_size(); ++i) {
          hashes[absl::StrCat("step ", step.step(), " ", step.tensor_hashes().names(i))] =
              step.tensor_hashes().hashes(i);
        }
      }
    }
    return hashes;
  };
  const auto reference = collect(RunStages(assignment, 1, false, Mode::kNever));
  EXPECT_TRUE(reference.contains("step 1 micro-batch 1 layer 2 output"));
  EXPECT_TRUE(reference.contains("step 1 micro-batch 1 layer 2 input gradient"));
  EXPECT_TRUE(reference.contains("step 4 gradient transformer.wte.weight"));
  EXPECT_TRUE(reference.contains("step 4 weight transformer.h.1.attn.c_attn.weight"));
  EXPECT_EQ(collect(RunStages(assignment, 3, true, Mode::kAlways)), reference);
}

TEST_F(IdentityTest, ANanStopsEveryStageAtTheSameStepWithTheLastGoodWeights) {
  v1::StageAssignment assignment = Gpt2Job();
  // One step at this rate makes the weights so large that the next forward overflows.
  assignment.mutable_spec()->mutable_training()->mutable_optimizer()->set_learning_rate(1e30);
  const auto stopped = RunStages(assignment, 3, false, Mode::kAlways);
  ASSERT_EQ(stopped.size(), 3u);
  const size_t good_steps = stopped[0].steps.size();
  ASSERT_LT(good_steps, 4u);
  ASSERT_GT(good_steps, 0u);
  for (const StageResult& result : stopped) {
    EXPECT_EQ(result.steps.size(), good_steps);
    EXPECT_THAT(result.reason, HasSubstr(absl::StrCat("in step ", good_steps + 1)));
  }
  assignment.mutable_spec()->mutable_training()->set_steps(static_cast<int64_t>(good_steps));
  assignment.mutable_spec()->mutable_training()->set_eval_every(0);
  const auto good = RunStages(assignment, 1, false, Mode::kNever);
  EXPECT_EQ(Summarise(stopped).weights, Summarise(good).weights);
}

TEST_F(IdentityTest, GenerateDrawsTheSameTokensForEveryNumberOfStages) {
  v1::StageAssignment assignment = Gpt2Job();
  v1::GenerateRequest* request = assignment.mutable_generate()->mutable_request();
  for (int64_t token : {3, 1, 4}) request->add_prompt(token);
  request->set_temperature(1);
  request->set_top_k(20);
  request->set_seed(5);
  request->set_max_tokens(15);  // past the context of 12
  assignment.add_weights()->set_sha256(std::string(64, 'b'));
  std::vector<v1::StageAssignment> assignments = WithBf16Products(assignment);
  assignments.push_back(assignment);
  for (const v1::StageAssignment& each : assignments) {
    const std::vector<int32_t> reference = RunStages(each, 1, false, Mode::kNever).back().drawn;
    EXPECT_EQ(reference.size(), 15u);
    for (int k = 2; k <= kLayers; ++k) {
      const auto results = RunStages(each, k, false, Mode::kNever);
      EXPECT_EQ(results.back().drawn, reference) << "K = " << k;
      for (const StageResult& result : results) {
        EXPECT_EQ(result.peak.gradients(), 0);
        EXPECT_EQ(result.peak.stash(), result.predicted.stash);
        EXPECT_EQ(result.peak.weights(), result.predicted.weights);
        EXPECT_EQ(result.peak.workspace(), result.predicted.workspace);
        EXPECT_LE(result.peak.link(), result.predicted.link);
      }
    }
  }
}

}  // namespace
}  // namespace headrace
