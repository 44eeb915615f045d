// Training that goes on from a state gives the bits of training that was never interrupted,
// whatever the number of stages before and after; and what becomes of a step whose numbers are no
// good.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/file.h"
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
using ::testing::IsEmpty;
using testing::LlamaJob;
using testing::PipelineOptions;
using testing::StageResult;

constexpr int64_t kSteps = 4;

// By step, exact: loss, norm, validation loss, or why it was not applied.
using Losses = std::map<int64_t, std::string>;

Losses LossesOf(const std::vector<StageResult>& results) {
  Losses losses;
  for (const v1::StageStep& step : results.back().steps) {
    char text[160];
    snprintf(text, sizeof(text), "%a %a %a %s", step.loss(), step.gradient_norm(),
             step.validation_loss(), step.skipped().c_str());
    losses[step.step()] = text;
  }
  return losses;
}

std::string WeightsOf(const std::vector<StageResult>& results) {
  std::string weights;
  for (const StageResult& result : results) weights += result.weights;
  return weights;
}

std::vector<StateFile> StateOf(const std::vector<StageResult>& results) {
  std::vector<StateFile> state;
  for (const StageResult& result : results) state.push_back(result.state);
  return state;
}

std::function<Verdict(int64_t)> LeaveAfter(int64_t last) {
  return
      [last](int64_t step) { return Verdict{.checkpoint = step == last, .leave = step == last}; };
}

class ResumeTest : public ::testing::Test {
 protected:
  ResumeTest() { testing::WriteTokens(tokens_, 600, testing::kVocabulary); }

  std::vector<StageResult> Run(v1::StageAssignment assignment, int num_stages,
                               PipelineOptions options = {}) {
    testing::FillPlan(&assignment, testing::kLayers, num_stages, num_stages % 2 == 0,
                      [&](int m) { return m < num_stages; });
    std::vector<StageResult> results =
        InMemoryPipeline(assignment, tokens_, std::move(options)).Run();
    for (const StageResult& result : results) EXPECT_TRUE(result.status.ok()) << result.status;
    return results;
  }

  // Steps 1 to `last` on `num_stages`; their losses are added to `losses`.
  std::vector<StateFile> RunUntil(const v1::StageAssignment& assignment, int64_t last,
                                  int num_stages, Losses* losses,
                                  std::map<int, DeviceOpener> devices = {}) {
    const std::string folder = absl::StrCat(dir_.path(), "/state-", ++folders_);
    EXPECT_TRUE(MakeDirectories(folder).ok());
    const auto results = Run(assignment, num_stages,
                             {.devices = std::move(devices),
                              .from = {},
                              .keep_state_in = folder,
                              .wishes = LeaveAfter(last),
                              .before_step = nullptr});
    for (const StageResult& result : results) EXPECT_TRUE(result.verdict.leave);
    losses->merge(LossesOf(results));
    return StateOf(results);
  }

  // From there to the end.
  std::vector<StageResult> GoOn(v1::StageAssignment assignment, int64_t step, int num_stages,
                                const std::vector<StateFile>& state, Losses* losses) {
    assignment.set_start_step(step);
    PipelineOptions options;
    options.from = state;
    auto results = Run(std::move(assignment), num_stages, std::move(options));
    losses->merge(LossesOf(results));
    return results;
  }

  const TempDir dir_;
  const std::string tokens_ = dir_ / "tokens";
  int folders_ = 0;
};

struct OptimizerCase {
  const char* name;
  v1::OptimizerKind kind;
  double momentum;
};

TEST_F(ResumeTest, GivesTheSameBitsForEveryOptimizerAndAnyTwoNumbersOfStages) {
  const OptimizerCase cases[] = {{"adamw", v1::OPTIMIZER_KIND_ADAMW, 0},
                                 {"sgd", v1::OPTIMIZER_KIND_SGD, 0},
                                 {"sgd with momentum", v1::OPTIMIZER_KIND_SGD, 0.9},
                                 {"rmsprop", v1::OPTIMIZER_KIND_RMSPROP, 0},
                                 {"rmsprop with momentum", v1::OPTIMIZER_KIND_RMSPROP, 0.9}};
  for (const OptimizerCase& c : cases) {
    v1::StageAssignment job = Gpt2Job();  // tied, with dropout and evaluations
    job.mutable_spec()->mutable_training()->mutable_optimizer()->set_kind(c.kind);
    job.mutable_spec()->mutable_training()->mutable_optimizer()->set_momentum(c.momentum);
    job.mutable_spec()->mutable_training()->mutable_learning_rate()->set_warmup_steps(2);
    const auto whole = Run(job, 1);
    for (int before = 1; before <= 3; ++before) {
      Losses until_two;
      const std::vector<StateFile> state = RunUntil(job, 2, before, &until_two);
      for (int after = 1; after <= 3; ++after) {
        Losses losses = until_two;
        const auto rest = GoOn(job, 2, after, state, &losses);
        EXPECT_EQ(losses, LossesOf(whole)) << c.name << ", K from " << before << " to " << after;
        EXPECT_TRUE(WeightsOf(rest) == WeightsOf(whole))
            << c.name << ", K from " << before << " to " << after;
      }
    }
  }
}

TEST_F(ResumeTest, AfterAnyStepAndMoreThanOnce) {
  const v1::StageAssignment job = LlamaJob();
  const auto whole = Run(job, 2);
  for (int64_t step = 1; step < kSteps; ++step) {
    Losses losses;
    const auto rest = GoOn(job, step, 3, RunUntil(job, step, 1, &losses), &losses);
    EXPECT_EQ(losses, LossesOf(whole)) << "after step " << step;
    EXPECT_TRUE(WeightsOf(rest) == WeightsOf(whole)) << "after step " << step;
  }
  Losses losses;
  std::vector<StateFile> state = RunUntil(job, 1, 2, &losses);
  for (int64_t step = 1; step < kSteps; ++step) {
    v1::StageAssignment next = job;
    next.set_start_step(step);
    const std::string folder = absl::StrCat(dir_.path(), "/again-", step);
    ASSERT_TRUE(MakeDirectories(folder).ok());
    PipelineOptions options;
    options.from = state;
    options.keep_state_in = folder;
    options.wishes = LeaveAfter(step + 1);
    const auto results = Run(next, static_cast<int>(step % 3) + 1, std::move(options));
    losses.merge(LossesOf(results));
    state = StateOf(results);
  }
  EXPECT_EQ(losses, LossesOf(whole));
}

TEST_F(ResumeTest, FromADevicesMemoryAndIntoOne) {
  const v1::StageAssignment job = Gpt2Job();
  const auto whole = Run(job, 1);
  DistantDevice::Log logs[4];
  Losses losses;
  const auto state =
      RunUntil(job, 2, 2, &losses,
               {{0, DistantDevice::Opener(&logs[0])}, {1, DistantDevice::Opener(&logs[1])}});
  v1::StageAssignment next = job;
  next.set_start_step(2);
  PipelineOptions options;
  options.from = state;
  options.devices[0] = DistantDevice::Opener(&logs[2]);
  options.devices[2] = DistantDevice::Opener(&logs[3]);
  const auto rest = Run(next, 3, std::move(options));
  losses.merge(LossesOf(rest));
  EXPECT_EQ(losses, LossesOf(whole));
  EXPECT_TRUE(WeightsOf(rest) == WeightsOf(whole));
}

TEST_F(ResumeTest, NothingOfAnEarlierStepIsLetInAfterwards) {
  v1::StageAssignment assignment = Gpt2Job();
  testing::FillPlan(&assignment, testing::kLayers, 2, true, [](int) { return true; });
  assignment.set_stage(1);
  assignment.set_start_step(2);
  v1::WeightsSlice* slice = assignment.add_weights();
  slice->set_sha256(std::string(64, 'a'));
  slice->set_end_layer(testing::kLayers);
  const StageJob job = *CheckAssignment(assignment, {int64_t{1} << 30, 1});
  Tag tag{.kind = v1::MESSAGE_KIND_ACTIVATION, .from_stage = 0, .step = 2, .chunk = 1};
  EXPECT_THAT(std::string(Expect(job, {}, tag).status().message()), HasSubstr("no such step"));
  tag.step = 3;
  EXPECT_TRUE(Expect(job, {}, tag).ok());
}

TEST_F(ResumeTest, AllStagesHearOfTheSameVerdict) {
  const Verdict verdict = {.checkpoint = true, .replicate = true, .leave = true};
  PipelineOptions options;
  options.wishes = [&](int64_t step) { return step == 3 ? verdict : Verdict(); };
  for (const StageResult& result : Run(Gpt2Job(), 3, std::move(options))) {
    EXPECT_EQ(result.steps.size(), 3u);
    EXPECT_TRUE(result.verdict == verdict);
    EXPECT_EQ(result.reason, "");
  }
}

// A position embedding, which every sequence reads, is not a number while step `bad` runs.
std::function<void(int, int64_t, std::vector<Parameter>*)> SpoilStep(int64_t bad, float* kept) {
  return [=](int stage, int64_t step, std::vector<Parameter>* parameters) {
    if (stage != 0) return;
    float* const weight = (*parameters)[1].weight.f32();
    if (step == bad) *kept = weight[0];
    if (step == bad) weight[0] = std::numeric_limits<float>::quiet_NaN();
    if (step == bad + 1) weight[0] = *kept;
  };
}

v1::StageAssignment WithPolicy(v1::NanPolicy policy) {
  v1::StageAssignment job = Gpt2Job();
  job.mutable_spec()->mutable_recovery()->set_on_nan(policy);
  job.mutable_spec()->mutable_training()->set_eval_every(0);
  return job;
}

v1::StageAssignment LeavingOut(v1::StageAssignment job, int64_t first, int64_t last) {
  v1::StepRange* range = job.add_skipped();
  range->set_first(first);
  range->set_last(last);
  return job;
}

TEST_F(ResumeTest, AStepThatIsSkippedIsAsIfItHadBeenLeftOut) {
  const v1::StageAssignment job = WithPolicy(v1::NAN_POLICY_SKIP);
  const auto left_out = Run(LeavingOut(job, 3, 3), 1);
  EXPECT_EQ(left_out.back().steps.size(), 3u);
  for (const int num_stages : {1, 3}) {
    float kept = 0;
    PipelineOptions options;
    options.before_step = SpoilStep(3, &kept);
    const auto skipped = Run(job, num_stages, std::move(options));
    for (const StageResult& stage : skipped) {
      ASSERT_EQ(stage.steps.size(), 4u) << "training went on";
      EXPECT_EQ(stage.steps[2].skipped(), "the loss became NaN in step 3");
      EXPECT_EQ(stage.steps[3].skipped(), "");
    }
    EXPECT_TRUE(std::isnan(skipped.back().steps[2].loss()));
    EXPECT_TRUE(WeightsOf(skipped) == WeightsOf(left_out)) << "K = " << num_stages;
    EXPECT_EQ(LossesOf(skipped)[4], LossesOf(left_out)[4]) << "K = " << num_stages;
  }
}

TEST_F(ResumeTest, ARollbackEndsAllStagesAndGoesOnWithTheStepsLeftOut) {
  const v1::StageAssignment job = WithPolicy(v1::NAN_POLICY_ROLLBACK);
  float kept = 0;
  PipelineOptions options;
  options.before_step = SpoilStep(3, &kept);
  for (const StageResult& stage : Run(job, 2, std::move(options))) {
    EXPECT_EQ(stage.steps.size(), 2u);
    EXPECT_TRUE(stage.verdict == Verdict{.fate = Fate::kRollback});
    EXPECT_EQ(stage.reason, "the loss became NaN in step 3");
  }
  // The last checkpoint is of step 1: steps 2 and 3 are left out for good.
  const v1::StageAssignment rest = LeavingOut(job, 2, 3);
  const auto whole = Run(rest, 1);
  Losses losses;
  const auto state = RunUntil(rest, 1, 2, &losses);
  const auto after = GoOn(rest, 1, 3, state, &losses);
  EXPECT_EQ(losses, LossesOf(whole));
  EXPECT_TRUE(WeightsOf(after) == WeightsOf(whole));
}

TEST_F(ResumeTest, StopIsWhatHappensUnlessSaidOtherwise) {
  float kept = 0;
  PipelineOptions options;
  options.before_step = SpoilStep(3, &kept);
  for (const StageResult& stage :
       Run(WithPolicy(v1::NAN_POLICY_UNSPECIFIED), 2, std::move(options))) {
    EXPECT_EQ(stage.steps.size(), 2u);
    EXPECT_TRUE(stage.verdict == Verdict{.fate = Fate::kStop});
  }
}

// What the rule says, worked out from the losses told.
std::vector<int64_t> SpikesIn(const std::vector<v1::StageStep>& steps, double factor) {
  std::vector<int64_t> spikes;
  std::vector<double> applied;
  for (const v1::StageStep& step : steps) {
    const size_t count = std::min<size_t>(applied.size(), 20);
    double sum = 0;
    for (size_t i = applied.size() - count; i < applied.size(); ++i) sum += applied[i];
    if (count >= 5 && step.loss() > factor * (sum / static_cast<double>(count))) {
      spikes.push_back(step.step());
    } else {
      applied.push_back(step.loss());
    }
  }
  return spikes;
}

TEST_F(ResumeTest, ASpikeIsTheSameForEveryNumberOfStagesAndAfterGoingOn) {
  constexpr double kFactor = 0.995;
  v1::StageAssignment job = WithPolicy(v1::NAN_POLICY_SKIP);
  job.mutable_spec()->mutable_training()->set_steps(30);
  job.mutable_spec()->mutable_recovery()->set_spike_factor(kFactor);
  const auto whole = Run(job, 1);
  const std::vector<v1::StageStep>& steps = whole.back().steps;
  std::vector<int64_t> skipped;
  for (const v1::StageStep& step : steps) {
    if (!step.skipped().empty()) skipped.push_back(step.step());
  }
  EXPECT_EQ(skipped, SpikesIn(steps, kFactor));
  ASSERT_THAT(skipped, Not(IsEmpty()));
  ASSERT_LT(skipped.size(), 20u);
  EXPECT_THAT(steps[static_cast<size_t>(skipped[0] - 1)].skipped(),
              HasSubstr(absl::StrCat("the loss of step ", skipped[0], " is ")));

  for (const int64_t after : {3, 17, 26}) {
    Losses losses;
    const auto state = RunUntil(job, after, 3, &losses);
    v1::StageAssignment next = job;
    std::vector<double> applied;
    for (const v1::StageStep& step : steps) {
      if (step.step() <= after && step.skipped().empty()) applied.push_back(step.loss());
    }
    const size_t first = applied.size() > 20 ? applied.size() - 20 : 0;
    for (size_t i = first; i < applied.size(); ++i) next.add_recent_losses(applied[i]);
    const auto rest = GoOn(next, after, 2, state, &losses);
    EXPECT_EQ(losses, LossesOf(whole)) << "after step " << after;
    EXPECT_TRUE(WeightsOf(rest) == WeightsOf(whole)) << "after step " << after;
  }
}

}  // namespace
}  // namespace headrace
