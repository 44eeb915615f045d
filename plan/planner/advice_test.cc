#include "plan/planner/advice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "plan/planner/planner_testing.h"

namespace headrace {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(AdviceTest, TooFewWorkersCanWait) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_pipeline()->set_stages(4);
  const auto few = PlanJob(spec, nullptr, EqualWorkers(2, kPlenty));
  EXPECT_EQ(few.status(), absl::UnavailableError("needs 4 workers, has 2"));
  spec.mutable_pipeline()->set_stages(0);
  EXPECT_EQ(PlanJob(spec, nullptr, {}).status(), absl::UnavailableError("needs 1 worker, has 0"));
}

TEST(AdviceTest, MoreStagesThanLayersIsAnError) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_pipeline()->set_stages(9);
  const auto plan = PlanJob(spec, nullptr, EqualWorkers(20, kPlenty));
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(plan.status().message()), HasSubstr("pipeline.stages: 9; expected"));
}

// The number after "with " in "training.micro_batches: N".
int64_t NumberAfter(const std::string& text, const std::string& before) {
  const size_t at = text.find(before);
  EXPECT_NE(at, std::string::npos) << text;
  return at == std::string::npos ? 0 : std::stoll(text.substr(at + before.size()));
}

TEST(AdviceTest, ARefusalSaysWhatIsMissingExactly) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_pipeline()->set_stages(1);
  const int64_t needed = Total(PlanOk(spec, EqualWorkers(1, kPlenty)).stage(0).memory());
  EXPECT_TRUE(PlanJob(spec, nullptr, EqualWorkers(1, needed)).ok());
  const std::string text = Refusal(spec, EqualWorkers(1, needed - 1000));
  EXPECT_THAT(text, HasSubstr("with 1 stage, stage 0 (embedding to head) needs"));
  EXPECT_THAT(text, HasSubstr("on worker w0, which has"));
  EXPECT_THAT(text, HasSubstr(": 1000 bytes (1000 B) are missing; it needs weights"));
}

TEST(AdviceTest, SuggestionsFit) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_pipeline()->set_stages(2);
  spec.mutable_pipeline()->set_recompute(v1::RECOMPUTE_MODE_NEVER);
  spec.mutable_training()->set_micro_batches(2);
  int64_t needed = 0;
  const v1::Plan roomy = PlanOk(spec, EqualWorkers(2, kPlenty));
  for (const v1::StagePlan& stage : roomy.stage()) {
    needed = std::max(needed, Total(stage.memory()));
  }
  const auto workers = EqualWorkers(2, needed * 9 / 10);
  const std::string text = Refusal(spec, workers);
  EXPECT_THAT(text, HasSubstr("It would fit with pipeline.recompute: always"));
  v1::JobSpec recompute = spec;
  recompute.mutable_pipeline()->set_recompute(v1::RECOMPUTE_MODE_ALWAYS);
  EXPECT_TRUE(PlanJob(recompute, nullptr, workers).ok());

  const int64_t count = NumberAfter(text, "or with ");
  ASSERT_THAT(text, HasSubstr(absl::StrCat("pipeline.stages: ", count)));
  v1::JobSpec more = spec;
  more.mutable_pipeline()->set_stages(count);
  const auto more_workers = EqualWorkers(static_cast<int>(count), needed * 9 / 10);
  EXPECT_TRUE(PlanJob(more, nullptr, more_workers).ok()) << text;
}

TEST(AdviceTest, SuggestsALargerM) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_training()->set_micro_batches(1);
  spec.mutable_training()->set_batch_size(64);
  const auto one = [&](int64_t memory) { return EqualWorkers(1, memory); };
  spec.mutable_pipeline()->set_stages(1);
  const int64_t needed = Total(PlanOk(spec, one(kPlenty)).stage(0).memory());
  const std::string text = Refusal(spec, one(needed * 3 / 4));
  v1::JobSpec larger = spec;
  const int64_t m = NumberAfter(text, "training.micro_batches: ");
  larger.mutable_training()->set_micro_batches(m);
  EXPECT_TRUE(PlanJob(larger, nullptr, one(needed * 3 / 4)).ok()) << text;
  EXPECT_THAT(text, Not(HasSubstr("pipeline.recompute")));  // it recomputes already
}

// Neither setting alone is enough: both are named, and both together fit.
TEST(AdviceTest, SuggestsSettingsTogether) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_pipeline()->set_stages(1);
  spec.mutable_pipeline()->set_recompute(v1::RECOMPUTE_MODE_NEVER);
  spec.mutable_training()->set_micro_batches(1);
  v1::JobSpec thrifty = spec;
  thrifty.mutable_pipeline()->set_recompute(v1::RECOMPUTE_MODE_ALWAYS);
  thrifty.mutable_training()->set_micro_batches(4);
  const auto workers =
      EqualWorkers(1, Total(PlanOk(thrifty, EqualWorkers(1, kPlenty)).stage(0).memory()));
  const std::string text = Refusal(spec, workers);
  EXPECT_THAT(text, HasSubstr("It would fit with pipeline.recompute: always and "
                              "training.micro_batches: 4, or with"));
}

TEST(AdviceTest, SaysWhenNothingHelps) {
  const std::string text = Refusal(SmallGpt2(), EqualWorkers(2, 1000));
  EXPECT_THAT(text, HasSubstr("no number of such workers"));
  EXPECT_THAT(text, Not(HasSubstr("It would fit")));
}

// Near the limit on every number of stages: what is accepted is within the limits, what is refused
// lacks something, and each refusal's first suggestion, if any, is one of the known ones.
TEST(AdviceTest, AcceptsExactlyWhatFits) {
  int accepted = 0, refused = 0;
  for (int64_t stages : {0, 1, 2, 3}) {
    for (int64_t kib = 256; kib <= 8192; kib += 256) {
      v1::JobSpec spec = SmallGpt2();
      spec.mutable_pipeline()->set_stages(stages);
      const auto workers = EqualWorkers(3, kib * 1024);
      const auto plan = PlanJob(spec, nullptr, workers);
      if (plan.ok()) {
        ++accepted;
        ExpectSound(spec, *plan, workers);
      } else {
        ++refused;
        EXPECT_EQ(plan.status().code(), absl::StatusCode::kFailedPrecondition);
        EXPECT_THAT(std::string(plan.status().message()),
                    AnyOf(HasSubstr("It would fit with"), HasSubstr("no number of")));
      }
    }
  }
  EXPECT_GT(accepted, 10);
  EXPECT_GT(refused, 10);
}

TEST(AdviceTest, AdviceIsLeftOutWhereItIsNotWanted) {
  const auto status = PlanJob(SmallGpt2(), nullptr, EqualWorkers(2, 1000), Advice::kNone).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("are missing"));
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("no number of such workers")));
}

}  // namespace
}  // namespace headrace
