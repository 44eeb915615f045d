#include "plan/planner/link_advice.h"

#include <gtest/gtest.h>

#include <vector>

#include "plan/planner/planner_testing.h"

namespace headrace {
namespace {

// Four stages that work 30 ms on a micro-batch, 6 ms apart: two layers each, which take the same.
struct SlowLinks {
  v1::JobSpec spec = SmallGpt2();
  std::vector<PlanWorker> workers = EqualWorkers(4, kPlenty);

  SlowLinks() {
    spec.mutable_pipeline()->set_stages(4);
    spec.mutable_pipeline()->set_schedule(v1::SCHEDULE_KIND_1F1B);
    spec.mutable_training()->set_batch_size(16);
    spec.mutable_training()->set_micro_batches(8);
    for (PlanWorker& worker : workers) {
      worker.link = {1e12, 6e-3};
      for (const LayerKind kind :
           {LayerKind::kEmbedding, LayerKind::kGpt2Block, LayerKind::kHead}) {
        worker.measured.push_back({kind, 5e-3, 0, 10e-3});
      }
    }
  }
};

double ExposedShare(const v1::Plan& plan) { return plan.exposed_s() / plan.step_s(); }

TEST(LinkAdviceTest, TellsWhatLinksExpose) {
  SlowLinks slow;
  const v1::Plan plan = PlanOk(slow.spec, slow.workers);
  for (PlanWorker& worker : slow.workers) worker.link = {1e12, 0};
  const v1::Plan free = PlanOk(slow.spec, slow.workers);
  EXPECT_LT(free.exposed_s(), 1e-6);
  EXPECT_FALSE(free.has_link_advice());
  EXPECT_NEAR(free.step_s(), (8 + 4 - 1) * 30e-3, 1e-6);
  // The way down to the last stage and back, and no more: the stages run ahead of the links.
  EXPECT_NEAR(plan.exposed_s(), 2 * 3 * 6e-3, 1e-6);
}

// As the advice says it, planned anew: it is enough, and half of it is not.
TEST(LinkAdviceTest, AdvisesTheFewestMicroBatchesThatHideLinks) {
  const SlowLinks slow;
  const v1::Plan plan = PlanOk(slow.spec, slow.workers);
  ASSERT_GT(ExposedShare(plan), kExposedShare);
  ASSERT_TRUE(plan.has_link_advice());
  const v1::LinkAdvice& advice = plan.link_advice();
  EXPECT_EQ(advice.micro_batches(), 32);  // 36 ms of 36 + 30 · (M + 3)
  v1::JobSpec more = slow.spec;
  more.mutable_training()->set_micro_batches(advice.micro_batches());
  more.mutable_training()->set_batch_size(advice.batch_size());
  const v1::Plan better = PlanOk(more, slow.workers);
  EXPECT_EQ(better.micro_batch_sequences(0), plan.micro_batch_sequences(0));
  EXPECT_LE(ExposedShare(better), kExposedShare);
  EXPECT_NEAR(1 - ExposedShare(better), advice.compute_share(), 1e-9);
  EXPECT_FALSE(better.has_link_advice());
  more.mutable_training()->set_micro_batches(advice.micro_batches() / 2);
  more.mutable_training()->set_batch_size(advice.batch_size() / 2);
  EXPECT_GT(ExposedShare(PlanOk(more, slow.workers)), kExposedShare);
}

// More micro-batches of GPipe's take more memory: what does not fit is not advised.
TEST(LinkAdviceTest, AdvisesNothingThatDoesNotFit) {
  SlowLinks slow;
  slow.spec.mutable_pipeline()->set_schedule(v1::SCHEDULE_KIND_GPIPE);
  const v1::Plan roomy = PlanOk(slow.spec, slow.workers);
  ASSERT_TRUE(roomy.has_link_advice());
  for (const v1::StagePlan& stage : roomy.stage()) {
    slow.workers[stage.worker()[1] - '0'].memory_limit_bytes = Total(stage.memory());
  }
  const v1::Plan tight = PlanOk(slow.spec, slow.workers);
  EXPECT_GT(ExposedShare(tight), kExposedShare);
  EXPECT_FALSE(tight.has_link_advice());
}

TEST(LinkAdviceTest, IsLeftOutWhereItIsNotWanted) {
  const SlowLinks slow;
  const auto plan = PlanJob(slow.spec, nullptr, slow.workers, Advice::kNone);
  ASSERT_TRUE(plan.ok());
  EXPECT_GT(ExposedShare(*plan), kExposedShare);
  EXPECT_FALSE(plan->has_link_advice());
}

}  // namespace
}  // namespace headrace
