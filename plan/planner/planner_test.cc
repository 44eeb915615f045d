#include "plan/planner/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "plan/layer_spec.h"
#include "plan/planner/stage_table.h"
#include "plan/planner/test_job.h"
#include "plan/schedule_check.h"
#include "plan/stage_memory.h"

namespace headrace {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kPlenty = int64_t{1} << 40;

int64_t Total(const v1::MemoryBytes& m) {
  return m.weights() + m.gradients() + m.optimizer() + m.stash() + m.workspace() + m.link();
}

v1::Plan PlanOk(const v1::JobSpec& spec, const std::vector<PlanWorker>& workers) {
  auto plan = PlanJob(spec, nullptr, workers);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *plan : v1::Plan();
}

std::string Refusal(const v1::JobSpec& spec, const std::vector<PlanWorker>& workers) {
  const auto plan = PlanJob(spec, nullptr, workers);
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kFailedPrecondition) << plan.status();
  return std::string(plan.status().message());
}

// Every promise of a plan that can be checked from the plan alone.
void ExpectSound(const v1::JobSpec& spec, const v1::Plan& plan,
                 const std::vector<PlanWorker>& workers) {
  const auto layers = BuildLayers(*ResolveModel(spec.model()));
  ASSERT_EQ(plan.stage_size(), plan.stages());
  Schedule schedule;
  std::set<std::string> used;
  int64_t next = 0, parameters = 0;
  for (int k = 0; k < plan.stages(); ++k) {
    const v1::StagePlan& stage = plan.stage(k);
    EXPECT_EQ(stage.stage(), k);
    EXPECT_EQ(stage.first_layer(), next);
    EXPECT_LT(stage.first_layer(), stage.end_layer());
    next = stage.end_layer();
    EXPECT_TRUE(used.insert(stage.worker()).second) << stage.worker();
    EXPECT_LE(Total(stage.memory()), stage.memory_limit_bytes());
    EXPECT_GE(stage.forward_s(), 0);  // 0: the head alone, which works in backward only
    EXPECT_GT(stage.backward_s(), stage.forward_s());
    parameters += stage.parameters();
    auto actions = ParseActions(stage.actions());
    ASSERT_TRUE(actions.ok()) << actions.status();
    schedule.push_back(*std::move(actions));
  }
  EXPECT_EQ(next, static_cast<int64_t>(layers.size()));
  EXPECT_EQ(plan.parameters(), parameters);
  EXPECT_EQ(plan.layer_names_size(), static_cast<int>(layers.size()));
  int64_t sequences = 0;
  for (const int64_t size : plan.micro_batch_sequences()) sequences += size;
  EXPECT_EQ(sequences, spec.training().batch_size());
  EXPECT_TRUE(CheckSchedule(schedule, static_cast<int>(plan.micro_batches()), 1).ok());
  EXPECT_EQ(plan.grid(), DrawGrid(schedule));
}

TEST(PlannerTest, FillsInEverything) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_pipeline()->set_stages(2);
  const auto workers = EqualWorkers(2, kPlenty);
  const v1::Plan plan = PlanOk(spec, workers);
  ExpectSound(spec, plan, workers);
  EXPECT_EQ(plan.stages(), 2);
  EXPECT_EQ(plan.micro_batches(), 4);
  EXPECT_EQ(plan.schedule(), v1::SCHEDULE_KIND_GPIPE);
  EXPECT_EQ(plan.recompute(), v1::RECOMPUTE_MODE_ALWAYS);
  EXPECT_DOUBLE_EQ(plan.ideal_bubble(), 1.0 / 5);
  EXPECT_GT(plan.step_s(), 0);
  EXPECT_GT(plan.bubble(), 0);
  EXPECT_EQ(plan.stage(0).worker(), "w0");
  EXPECT_EQ(plan.stage(1).worker(), "w1");
  EXPECT_EQ(plan.stage(1).actions(), "1F0 1F1 1F2 1F3 1R0 1B0 1R1 1B1 1R2 1B2 1R3 1B3");
  EXPECT_EQ(plan.layer_names(0), "embedding");
  EXPECT_EQ(plan.layer_names(7), "head");
}

TEST(PlannerTest, EverySettingGivesASoundPlan) {
  for (v1::JobSpec spec : {SmallGpt2(), SmallLlama()}) {
    for (const auto schedule : {v1::SCHEDULE_KIND_GPIPE, v1::SCHEDULE_KIND_1F1B}) {
      for (const auto mode :
           {v1::RECOMPUTE_MODE_ALWAYS, v1::RECOMPUTE_MODE_EXCEPT_LAST, v1::RECOMPUTE_MODE_NEVER}) {
        for (int64_t m : {1, 3, 8}) {  // 8 sequences: M = 1, uneven parts, one each; M < K too
          for (int64_t stages : {0, 1, 2, 4, 7}) {
            spec.mutable_pipeline()->set_schedule(schedule);
            spec.mutable_pipeline()->set_recompute(mode);
            spec.mutable_pipeline()->set_stages(stages);
            spec.mutable_training()->set_micro_batches(m);
            const auto workers = EqualWorkers(7, kPlenty);
            SCOPED_TRACE(spec.ShortDebugString());
            ExpectSound(spec, PlanOk(spec, workers), workers);
          }
        }
      }
    }
  }
}

// C is about 0.4 ms here, and a link takes 0.2 ms and more each way.
TEST(PlannerTest, OneForwardOneBackwardRunsAheadOfItsLinksWhereThatPaysAndFits) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_pipeline()->set_schedule(v1::SCHEDULE_KIND_1F1B);
  spec.mutable_pipeline()->set_stages(3);
  spec.mutable_training()->set_micro_batches(8);
  const auto starts_with = [&](double flops_per_second, const std::string& actions) {
    const v1::Plan plan = PlanOk(spec, EqualWorkers(3, kPlenty, flops_per_second));
    return plan.stage(0).actions().substr(0, actions.size()) == actions;
  };
  EXPECT_TRUE(starts_with(50e9, "0F0 0F1 0F2 0F3 0F4 0R0 "));
  EXPECT_TRUE(starts_with(1e6, "0F0 0F1 0F2 0R0 "));  // no link counts beside these seconds
  spec.mutable_pipeline()->set_credits(1);
  EXPECT_TRUE(starts_with(50e9, "0F0 0F1 0F2 0R0 "));
}

TEST(PlannerTest, DeclaredLinksCount) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_pipeline()->set_stages(2);
  std::vector<PlanWorker> workers = EqualWorkers(2, kPlenty);
  const double fast_s = PlanOk(spec, workers).step_s();
  for (PlanWorker& worker : workers) worker.link = {1e6, 0.5};
  const v1::Plan slow = PlanOk(spec, workers);
  const double boundary_s = 0.5 + 2 * 32 * 64 * 4 / 1e6;
  EXPECT_NEAR(slow.stage(0).activation_s(), boundary_s, 1e-9);
  EXPECT_EQ(slow.stage(0).gradient_s(), 0);
  EXPECT_NEAR(slow.stage(1).gradient_s(), boundary_s, 1e-9);
  EXPECT_EQ(slow.stage(1).activation_s(), 0);
  EXPECT_GT(slow.step_s(), fast_s + 2 * boundary_s);
  // Left to itself, the planner keeps the job off such links.
  spec.mutable_pipeline()->set_stages(0);
  EXPECT_EQ(PlanOk(spec, workers).stages(), 1);
}

TEST(PlannerTest, AutoPicksTheFastestNumberOfStages) {
  v1::JobSpec spec = SmallGpt2();
  const auto workers = EqualWorkers(4, kPlenty, 1e9);
  double fastest_s = 1e9;
  for (int64_t stages = 1; stages <= 4; ++stages) {
    spec.mutable_pipeline()->set_stages(stages);
    fastest_s = std::min(fastest_s, PlanOk(spec, workers).step_s());
  }
  spec.mutable_pipeline()->set_stages(0);
  const v1::Plan plan = PlanOk(spec, workers);
  EXPECT_EQ(plan.step_s(), fastest_s);
  EXPECT_EQ(plan.stages(), 4);
  // So fast that only the links count: one stage.
  EXPECT_EQ(PlanOk(spec, EqualWorkers(4, kPlenty, 1e15)).stages(), 1);
}

TEST(PlannerTest, AFasterWorkerGetsMoreLayers) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_pipeline()->set_stages(2);
  const v1::Plan plan = PlanOk(spec, {{"slow", 1e9, kPlenty, 1}, {"fast", 3e9, kPlenty, 1}});
  for (const v1::StagePlan& stage : plan.stage()) {
    const int64_t layers = stage.end_layer() - stage.first_layer();
    EXPECT_EQ(layers >= 5, stage.worker() == "fast") << stage.worker() << " has " << layers;
  }
}

TEST(PlannerTest, ASmallWorkerGetsWhatFits) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_pipeline()->set_stages(2);
  const auto whole = Total(PlanOk(spec, EqualWorkers(2, kPlenty)).stage(0).memory());
  const std::vector<PlanWorker> workers = {{"small", 9e9, whole * 2 / 3, 1},
                                           {"large", 1e9, kPlenty, 1}};
  const v1::Plan plan = PlanOk(spec, workers);
  ExpectSound(spec, plan, workers);
}

TEST(PlannerTest, TooFewWorkersCanWait) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_pipeline()->set_stages(4);
  const auto few = PlanJob(spec, nullptr, EqualWorkers(2, kPlenty));
  EXPECT_EQ(few.status(), absl::UnavailableError("needs 4 workers, has 2"));
  spec.mutable_pipeline()->set_stages(0);
  EXPECT_EQ(PlanJob(spec, nullptr, {}).status(), absl::UnavailableError("needs 1 worker, has 0"));
}

TEST(PlannerTest, Bf16TakesWorkersWhoseCpuHasItOrSaysWhoHasNot) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_training()->set_precision(v1::PRECISION_BF16);
  std::vector<PlanWorker> workers = EqualWorkers(3, kPlenty);
  workers[1].bf16 = false;
  spec.mutable_pipeline()->set_stages(2);
  const v1::Plan plan = PlanOk(spec, workers);
  EXPECT_EQ(plan.precision(), v1::PRECISION_BF16);
  EXPECT_EQ(plan.stage(0).worker(), "w0");
  EXPECT_EQ(plan.stage(1).worker(), "w2");
  spec.mutable_pipeline()->set_stages(3);
  EXPECT_EQ(Refusal(spec, workers),
            "precision bf16 needs 3 workers whose CPU multiplies bf16 (avx512_bf16), has 2: w1 has "
            "not; training.bf16_emulate: true computes it on any CPU, slowly");
  spec.mutable_pipeline()->set_stages(4);
  EXPECT_EQ(PlanJob(spec, nullptr, workers).status(),
            absl::UnavailableError("needs 4 workers, has 3"));
  spec.mutable_pipeline()->set_stages(3);
  spec.mutable_training()->set_bf16_emulate(true);
  EXPECT_TRUE(PlanOk(spec, workers).bf16_emulate());
  EXPECT_EQ(PlanOk(SmallGpt2(), workers).precision(), v1::PRECISION_FP32);
  spec.mutable_training()->set_bf16_emulate(false);
  workers[0].bf16 = workers[2].bf16 = false;
  EXPECT_EQ(PlanGenerate(spec, workers).status().code(), absl::StatusCode::kFailedPrecondition);
}

// Milliseconds of a block and of a head, a third of them forward; an embedding takes nothing.
std::vector<MeasuredCost> Measured(double block_ms, double head_ms) {
  const auto cost = [](LayerKind kind, double ms) {
    return MeasuredCost{kind, ms / 3e3, 0, 2 * ms / 3e3};
  };
  return {cost(LayerKind::kEmbedding, 0), cost(LayerKind::kGpt2Block, block_ms),
          cost(LayerKind::kHead, head_ms)};
}

TEST(PlannerTest, MeasuredSecondsMoveTheCut) {
  v1::JobSpec spec = SmallGpt2();  // an embedding, blocks 1 to 6, head 7
  spec.mutable_pipeline()->set_stages(2);
  spec.mutable_pipeline()->set_recompute(v1::RECOMPUTE_MODE_NEVER);
  std::vector<PlanWorker> workers = EqualWorkers(2, kPlenty);
  const v1::Plan counted = PlanOk(spec, workers);
  EXPECT_EQ(counted.stage(1).first_layer(), 4);
  EXPECT_EQ(counted.stage(0).cost_source(), v1::COST_SOURCE_FLOPS);

  // 5 blocks of 30 ms against one and a head of 120 ms.
  for (PlanWorker& worker : workers) worker.measured = Measured(30, 120);
  const v1::Plan measured = PlanOk(spec, workers);
  ExpectSound(spec, measured, workers);
  EXPECT_EQ(measured.stage(1).first_layer(), 6);
  for (const v1::StagePlan& stage : measured.stage()) {
    EXPECT_EQ(stage.cost_source(), v1::COST_SOURCE_MEASURED);
    EXPECT_NEAR(stage.forward_s(), 0.050, 1e-9);
    EXPECT_NEAR(stage.backward_s(), 0.100, 1e-9);
  }
  // Both stages take the same: the bubble is GPipe's, but for what links take.
  EXPECT_NEAR(measured.bubble(), measured.ideal_bubble(), 0.01);
}

TEST(PlannerTest, MeasuredSecondsTellWorkersApart) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_pipeline()->set_stages(2);
  std::vector<PlanWorker> workers = EqualWorkers(2, kPlenty);
  workers[0].measured = Measured(60, 10);
  workers[1].measured = Measured(30, 10);
  const v1::Plan plan = PlanOk(spec, workers);
  for (const v1::StagePlan& stage : plan.stage()) {
    const int64_t blocks =
        std::min<int64_t>(stage.end_layer(), 7) - std::max<int64_t>(stage.first_layer(), 1);
    EXPECT_EQ(blocks, stage.worker() == "w0" ? 2 : 4) << plan.ShortDebugString();
  }
}

// A layer that was not measured takes its FLOPs at the speed the measured ones showed, not at that
// of bare matrix products: else one missing measurement would move the cut by itself.
TEST(PlannerTest, AMissingMeasurementIsFilledInAtTheSpeedOfTheOthers) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_pipeline()->set_stages(2);
  std::vector<PlanWorker> workers = EqualWorkers(2, kPlenty);
  const JobShape job = *ResolveTraining(spec);
  const double slow = 1e6;  // FLOPs a second, of all layers alike
  const auto at = [&](int layer) {
    const LayerSpec& l = job.layers[layer];
    return MeasuredCost{l.kind, ForwardFlops(job.model, l, job.largest) / slow,
                        RecomputeFlops(job.model, l, job.largest) / slow,
                        BackwardFlops(job.model, l, job.largest) / slow};
  };
  for (PlanWorker& worker : workers) worker.measured = {at(1)};
  const v1::Plan partly = PlanOk(spec, workers);
  for (PlanWorker& worker : workers) worker.measured = {at(0), at(1), at(7)};
  const v1::Plan wholly = PlanOk(spec, workers);
  for (int k = 0; k < 2; ++k) {
    EXPECT_EQ(partly.stage(k).cost_source(), v1::COST_SOURCE_MIXED);
    EXPECT_EQ(partly.stage(k).first_layer(), wholly.stage(k).first_layer());
    EXPECT_NEAR(partly.stage(k).forward_s(), wholly.stage(k).forward_s(), 1e-6);
    EXPECT_NEAR(partly.stage(k).backward_s(), wholly.stage(k).backward_s(), 1e-6);
  }
}

TEST(PlannerTest, MoreStagesThanLayersIsAnError) {
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

TEST(PlannerTest, ARefusalSaysWhatIsMissingExactly) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_pipeline()->set_stages(1);
  const int64_t needed = Total(PlanOk(spec, EqualWorkers(1, kPlenty)).stage(0).memory());
  EXPECT_TRUE(PlanJob(spec, nullptr, EqualWorkers(1, needed)).ok());
  const std::string text = Refusal(spec, EqualWorkers(1, needed - 1000));
  EXPECT_THAT(text, HasSubstr("with 1 stage, stage 0 (embedding to head) needs"));
  EXPECT_THAT(text, HasSubstr("on worker w0, which has"));
  EXPECT_THAT(text, HasSubstr(": 1000 bytes (1000 B) are missing; it needs weights"));
}

TEST(PlannerTest, SuggestionsFit) {
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

TEST(PlannerTest, SuggestsALargerM) {
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
TEST(PlannerTest, SuggestsSettingsTogether) {
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

TEST(PlannerTest, SaysWhenNothingHelps) {
  const std::string text = Refusal(SmallGpt2(), EqualWorkers(2, 1000));
  EXPECT_THAT(text, HasSubstr("no number of such workers"));
  EXPECT_THAT(text, Not(HasSubstr("It would fit")));
}

// Near the limit on every number of stages: what is accepted is within the limits, what is refused
// lacks something, and each refusal's first suggestion, if any, is one of the known ones.
TEST(PlannerTest, AcceptsExactlyWhatFits) {
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

// So many different workers that they are taken in coarse classes.
TEST(PlannerTest, ManyDifferentWorkersArePlannedAndRefused) {
  std::vector<PlanWorker> workers;
  for (int i = 0; i < 30; ++i) {
    workers.push_back({absl::StrCat("w", i), 10e9 * (1 + i), 200'000 + 1000 * i, 1 + i % 3});
  }
  EXPECT_THAT(Refusal(SmallGpt2(), workers), HasSubstr("are missing"));
  for (PlanWorker& worker : workers) worker.memory_limit_bytes *= 100;
  const v1::JobSpec spec = SmallGpt2();
  ExpectSound(spec, PlanOk(spec, workers), workers);
}

TEST(PlannerTest, GenerateTakesAsFewStagesAsFit) {
  const v1::JobSpec spec = SmallGpt2();
  const v1::Plan one = *PlanGenerate(spec, EqualWorkers(3, kPlenty));
  EXPECT_EQ(one.stages(), 1);
  EXPECT_EQ(one.stage(0).end_layer(), 8);
  EXPECT_EQ(one.micro_batch_sequences(0), 1);
  EXPECT_EQ(one.stage(0).memory().gradients(), 0);
  const auto two = PlanGenerate(spec, EqualWorkers(3, Total(one.stage(0).memory()) - 1));
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_EQ(two->stages(), 2);
  EXPECT_EQ(PlanGenerate(spec, EqualWorkers(3, 1000)).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(PlanGenerate(spec, {}).status().code(), absl::StatusCode::kUnavailable);
}

TEST(PlannerTest, ChecksTheJobAndItsData) {
  v1::JobSpec spec = SmallGpt2();
  v1::Dataset dataset;
  dataset.set_num_tokens(10);
  EXPECT_EQ(PlanJob(spec, &dataset, EqualWorkers(1, kPlenty)).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// Three hosts: a with one worker, b with two, c with one fast one.
std::vector<PlanWorker> WorkersOnHosts() {
  std::vector<PlanWorker> workers = EqualWorkers(4, kPlenty);
  workers[3].flops_per_second *= 8;
  const char* const kHosts[] = {"a", "b", "b", "c"};
  for (size_t i = 0; i < workers.size(); ++i) workers[i].host = kHosts[i];
  return workers;
}

TEST(PlannerTest, SharedMemoryKeepsAllStagesOnOneHost) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_pipeline()->set_stages(2);
  spec.mutable_pipeline()->set_transport(v1::TRANSPORT_SHM);
  const std::vector<PlanWorker> workers = WorkersOnHosts();
  const auto plan = PlanJob(spec, nullptr, workers);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->stage(0).worker(), workers[1].name);
  EXPECT_EQ(plan->stage(1).worker(), workers[2].name);
  spec.mutable_pipeline()->set_stages(0);
  const auto fastest = PlanJob(spec, nullptr, workers);
  ASSERT_TRUE(fastest.ok()) << fastest.status();
  EXPECT_EQ(fastest->stages(), 1);
  EXPECT_EQ(fastest->stage(0).worker(), workers[3].name);
}

TEST(PlannerTest, SharedMemoryAcrossHostsIsRefusedNamingTwoWorkers) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_pipeline()->set_stages(3);
  std::vector<PlanWorker> workers = WorkersOnHosts();
  EXPECT_TRUE(PlanJob(spec, nullptr, workers).ok());
  spec.mutable_pipeline()->set_transport(v1::TRANSPORT_SHM);
  const absl::Status refused = PlanJob(spec, nullptr, workers).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr(absl::StrCat("pipeline.transport: shm, but no host has workers enough: "
                                     "worker ",
                                     workers[1].name, " (one of 2 on its host) and worker ",
                                     workers[0].name, " are on different hosts")));
  // Who tells no host shares with nobody; machines one only asks about are taken for one.
  for (PlanWorker& worker : workers) worker.host = worker.host == "b" ? "b" : "";
  EXPECT_FALSE(PlanJob(spec, nullptr, workers).ok());
  for (PlanWorker& worker : workers) worker.host = "";
  EXPECT_TRUE(PlanJob(spec, nullptr, workers).ok());
}

double CpuSeconds(const std::function<void()>& work) {
  const std::clock_t start = std::clock();  // of this process: others may load the machine
  work();
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

// Advice on a deep model took seconds: hundreds of variations, each with a thousand layers built
// anew.
TEST(PlannerTest, AThousandLayersArePlannedAndRefusedAtOnce) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_model()->set_n_layer(998);
  spec.mutable_training()->set_batch_size(64);
  spec.mutable_pipeline()->set_recompute(v1::RECOMPUTE_MODE_NEVER);
  for (const int64_t stages : {0, 4}) {
    spec.mutable_pipeline()->set_stages(stages);
    int64_t largest = 0;
    const v1::Plan plan = PlanOk(spec, EqualWorkers(4, kPlenty));
    for (const auto& stage : plan.stage()) largest = std::max(largest, Total(stage.memory()));
    for (const int64_t memory : {kPlenty, largest / 2, largest / 20, int64_t{1000}}) {
      const auto workers = EqualWorkers(4, memory);
      const double took_s = CpuSeconds([&] { PlanJob(spec, nullptr, workers).IgnoreError(); });
      // Without a sanitizer 0.03 s; they take up to 20 times as long.
      EXPECT_LT(took_s, 1) << stages << " stages, " << memory << " bytes";
    }
  }
}

TEST(PlannerTest, AdviceIsLeftOutWhereItIsNotWanted) {
  const auto status = PlanJob(SmallGpt2(), nullptr, EqualWorkers(2, 1000), Advice::kNone).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("are missing"));
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("no number of such workers")));
}

// Ten thousand layers on a thousand workers: the whole plan, text and all.
TEST(PlannerTest, AThousandStagesPlanInSeconds) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_model()->set_n_layer(9'998);
  spec.mutable_pipeline()->set_stages(1'000);
  v1::Plan plan;
  const double took_s = CpuSeconds([&] { plan = PlanOk(spec, EqualWorkers(1'000, kPlenty)); });
  EXPECT_EQ(plan.stages(), 1'000);
  EXPECT_LT(took_s, 20);  // 0.5 s; a sanitizer takes 10 times as long
}

}  // namespace
}  // namespace headrace
