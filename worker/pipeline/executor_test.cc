// The executor of a middle stage with a model that only writes down what it is asked, and
// neighbours played by the test.
#include "worker/pipeline/executor.h"

#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/assignment.h"
#include "worker/pipeline/in_memory_pipeline.h"

namespace headrace {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Log = std::vector<std::string>;

class FakeModel final : public StageModel {
 public:
  explicit FakeModel(Log* log) : log_(log) {}

  void Initialise(uint64_t) override {}
  void RoundWeights() override {}
  std::vector<Parameter>& parameters() override { return parameters_; }
  void Forward(const MicroBatch& mb, const void* input, Act output, void* kept) override {
    log_->push_back(absl::StrCat(mb.training ? "F" : "E", mb.micro_batch, kept ? " keep" : ""));
    output.f32()[0] = static_cast<const float*>(input)[0] + 1;
  }
  void Recompute(const MicroBatch& mb, const void*, void* kept) override {
    log_->push_back(absl::StrCat("R", mb.micro_batch, kept ? " keep" : ""));
  }
  void Backward(const MicroBatch& mb, const void* input, const void* kept, ConstAct output_gradient,
                Act input_gradient) override {
    log_->push_back(absl::StrCat("B", mb.micro_batch, kept ? " kept" : ""));
    input_gradient.f32()[0] = output_gradient.f32()[0] * static_cast<const float*>(input)[0];
  }
  void Logits(const MicroBatch&, const void*, int64_t, float*) override {}
  void ZeroGradients() override { log_->push_back("zero"); }
  void Observe(TensorObserver) override {}

 private:
  Log* const log_;
  std::vector<Parameter> parameters_;
};

class FakeOptimizer final : public Optimizer {
 public:
  explicit FakeOptimizer(Log* log) : log_(log) {}
  void Step(int64_t step, double scale) override {
    log_->push_back(absl::StrCat("update ", step, " scale ", scale));
  }
  const std::vector<std::vector<OptimizerSlot>>& slots() const override { return slots_; }

 private:
  Log* const log_;
  const std::vector<std::vector<OptimizerSlot>> slots_;
};

class FakeOutbox final : public Outbox {
 public:
  explicit FakeOutbox(Log* log) : log_(log) {}
  absl::Status Send(int to_stage, Outgoing outgoing, absl::Time) override {
    if (!failure.ok()) return failure;
    std::string what = absl::StrCat("send ", KindName(outgoing.tag.kind), " ",
                                    outgoing.tag.micro_batch, " to ", to_stage);
    if (outgoing.tensor.type == ElementType::kFloat32) {
      absl::StrAppend(&what, " = ", outgoing.tensor.f32()[0]);
    } else if (outgoing.tensor.type == ElementType::kBfloat16) {
      absl::StrAppend(&what, " = bf16 ", std::bit_cast<float>(outgoing.tensor.bf16()[0] << 16));
    } else {
      for (int64_t i = 0; i < outgoing.tensor.elements(); ++i) {
        absl::StrAppend(&what, i == 0 ? " = " : " ", outgoing.tensor.f64()[i]);
      }
    }
    log_->push_back(what);
    return absl::OkStatus();
  }
  absl::Status Finish(absl::Time) override { return absl::OkStatus(); }
  void Close() override {}

  absl::Status failure;

 private:
  Log* const log_;
};

// Stage 1 of 3, one block, two micro-batches.
StageJob MiddleJob(bool recompute, v1::BoundaryDtype dtype) {
  v1::StageAssignment assignment;
  assignment.mutable_spec()->mutable_pipeline()->set_boundary_dtype(dtype);
  assignment.set_job_id("j1");
  assignment.set_stage(1);
  v1::ModelSpec* model = assignment.mutable_spec()->mutable_model();
  model->set_family(v1::MODEL_FAMILY_GPT2);
  model->set_vocab_size(8);
  model->set_n_layer(1);
  model->set_n_embd(4);
  model->set_n_head(1);
  model->set_n_positions(4);
  v1::TrainingSpec* training = assignment.mutable_spec()->mutable_training();
  training->set_steps(3);
  training->set_batch_size(2);
  training->set_micro_batches(2);
  training->set_sequence_length(3);
  training->set_clip_norm(1);
  training->mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_SGD);
  assignment.mutable_dataset()->set_sha256(std::string(64, 'a'));
  assignment.set_wait_timeout_ms(100);
  testing::FillPlan(&assignment, 3, 3, /*one_f_one_b=*/false, [=](int) { return recompute; });
  const absl::StatusOr<StageJob> job = CheckAssignment(assignment, {int64_t{1} << 30, 1});
  EXPECT_TRUE(job.ok()) << job.status();
  return *job;
}

class ExecutorTest : public ::testing::Test {
 protected:
  explicit ExecutorTest(bool recompute = true,
                        v1::BoundaryDtype dtype = v1::BOUNDARY_DTYPE_UNSPECIFIED)
      : job_(MiddleJob(recompute, dtype)) {
    arena_ = *Arena::Create(1 << 20);
    device_ = HostDevice(*Arena::Create(0), CreateCpuOps(1));
    ops_ = device_->ops();
    tokens_ = *TokenIo::Create(job_, device_.get());
    stash_ = *Stash::Create(job_.shape, job_.actions, 2, arena_.get());
    codec_ = *BoundaryCodec::Create(job_.shape, arena_.get(), ops_);
    pools_ = *LinkPools::Create(job_, stash_->boundary_pool(), arena_.get());
    inbox_ = std::make_unique<Inbox>([this](const Tag& tag) { return Expect(job_, pools_, tag); });
    exchange_ =
        std::make_unique<Exchange>(&job_, pools_, inbox_.get(), &outbox_, &recorder_, &spans_);
    StageParts parts;
    parts.model = &model_;
    parts.optimizer = &optimizer_;
    parts.device = device_.get();
    parts.ops = ops_;
    parts.tokens = tokens_.get();
    losses_ = *DeviceNumbers::Create(device_.get(), 0, "losses");
    squares_ = *DeviceNumbers::Create(
        device_.get(), static_cast<int64_t>(model_.parameters().size()), "squared norms");
    parts.losses = losses_.get();
    parts.squares = squares_.get();
    parts.stash = stash_.get();
    parts.codec = codec_.get();
    parts.exchange = exchange_.get();
    parts.cancelled = &cancelled_;
    executor_ = std::make_unique<Executor>(&job_, parts);
  }

  // A neighbour's tensor arrives.
  void Arrives(v1::MessageKind kind, int from, int m, ElementType type, std::vector<int64_t> shape,
               std::vector<double> values) {
    Tag tag;
    tag.kind = kind;
    tag.from_stage = from;
    tag.step = 1;
    tag.chunk = 1;
    tag.micro_batch = m;
    absl::StatusOr<Received> received = inbox_->Prepare(tag, type, shape);
    ASSERT_TRUE(received.ok()) << received.status();
    for (size_t i = 0; i < values.size(); ++i) {
      if (type == ElementType::kFloat32) received->tensor.f32()[i] = static_cast<float>(values[i]);
      const float value = static_cast<float>(values[i]);
      if (type == ElementType::kBfloat16) ops_->NarrowBf16(&value, received->tensor.bf16() + i, 1);
      if (type == ElementType::kFloat64) {
        std::memcpy(static_cast<char*>(received->tensor.data) + 8 * i, &values[i], 8);
      }
    }
    ASSERT_TRUE(inbox_->Put(*std::move(received)).ok());
  }
  void ActivationArrives(int m, double value) {
    Arrives(v1::MESSAGE_KIND_ACTIVATION, 0, m, ElementType::kFloat32, {3, 4}, {value});
  }
  void GradientArrives(int m, double value) {
    Arrives(v1::MESSAGE_KIND_GRADIENT, 2, m, ElementType::kFloat32, {3, 4}, {value});
  }
  void DecisionArrives(double norm_squared, double loss, double verdict) {
    Arrives(v1::MESSAGE_KIND_NORM_PARTIAL, 2, 0, ElementType::kFloat64, {2}, {norm_squared, loss});
    Arrives(v1::MESSAGE_KIND_DECISION, 0, 0, ElementType::kFloat64, {3},
            {norm_squared, loss, verdict});
  }

  Log log_;
  const StageJob job_;
  FakeModel model_{&log_};
  FakeOptimizer optimizer_{&log_};
  FakeOutbox outbox_{&log_};
  FlightRecorder recorder_;
  SpanRecorder spans_{256};
  std::atomic<bool> cancelled_ = false;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<ComputeDevice> device_;
  Ops* ops_ = nullptr;
  std::unique_ptr<TokenIo> tokens_;
  std::unique_ptr<DeviceNumbers> losses_, squares_;
  std::unique_ptr<Stash> stash_;
  std::unique_ptr<BoundaryCodec> codec_;
  LinkPools pools_;
  std::unique_ptr<Inbox> inbox_;
  std::unique_ptr<Exchange> exchange_;
  std::unique_ptr<Executor> executor_;
};

class KeepingExecutorTest : public ExecutorTest {
 protected:
  KeepingExecutorTest() : ExecutorTest(/*recompute=*/false) {}
};

TEST_F(ExecutorTest, DoesWhatTheListSaysAndSendsWhatFollowsFromIt) {
  ActivationArrives(0, 10);
  ActivationArrives(1, 20);
  GradientArrives(0, 2);
  GradientArrives(1, 3);
  DecisionArrives(16, 1.5, 0);
  const absl::StatusOr<StepOutcome> outcome = executor_->RunStep(1);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->reason, "");
  EXPECT_TRUE(outcome->verdict == Verdict());
  EXPECT_THAT(log_,
              ElementsAre("zero",  //
                          "F0", "send activation 0 to 2 = 11", "F1", "send activation 1 to 2 = 21",
                          "R0 keep", "B0 kept", "send gradient 0 to 0 = 20", "R1 keep", "B1 kept",
                          "send gradient 1 to 0 = 60", HasSubstr("to 0 = 16 1.5"),
                          HasSubstr("to 2 = 16 1.5 0"), HasSubstr("update 1 scale 0.25")));
  EXPECT_EQ(arena_->in_use(MemoryKind::kStash), 0);
  EXPECT_EQ(arena_->in_use(MemoryKind::kLink), 0);
}

class Bf16ExecutorTest : public ExecutorTest {
 protected:
  Bf16ExecutorTest() : ExecutorTest(/*recompute=*/true, v1::BOUNDARY_DTYPE_BF16) {}
};

// bfloat16 has 8 significant bits: 257 = 256 + 1 lies between 256 and 258 and goes to the even one.
TEST_F(Bf16ExecutorTest, RoundsWhatItSendsAndKeepsWhatArrived) {
  Arrives(v1::MESSAGE_KIND_ACTIVATION, 0, 0, ElementType::kBfloat16, {3, 4}, {256});
  Arrives(v1::MESSAGE_KIND_ACTIVATION, 0, 1, ElementType::kBfloat16, {3, 4}, {5});
  Arrives(v1::MESSAGE_KIND_GRADIENT, 2, 0, ElementType::kBfloat16, {3, 4}, {1});
  Arrives(v1::MESSAGE_KIND_GRADIENT, 2, 1, ElementType::kBfloat16, {3, 4}, {51.5});
  DecisionArrives(1, 1, 0);
  const absl::StatusOr<StepOutcome> outcome = executor_->RunStep(1);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_THAT(log_, Contains("send activation 0 to 2 = bf16 256"));
  EXPECT_THAT(log_, Contains("send activation 1 to 2 = bf16 6"));
  EXPECT_THAT(log_, Contains("send gradient 0 to 0 = bf16 256"));
  EXPECT_THAT(log_, Contains("send gradient 1 to 0 = bf16 258"));  // 257.5
  EXPECT_EQ(arena_->peak(MemoryKind::kStash),
            2 * 64 + WorkingSetBytes(job_.shape));  // 2 · 12 bytes, aligned
}

TEST_F(Bf16ExecutorTest, ABoundaryOfAnotherTypeIsRefused) {
  Tag tag;
  tag.kind = v1::MESSAGE_KIND_ACTIVATION;
  tag.from_stage = 0;
  tag.step = 1;
  tag.chunk = 1;
  EXPECT_THAT(inbox_->Prepare(tag, ElementType::kFloat32, {3, 4}).status().message(),
              HasSubstr("float32 [3, 4] arrived, expected bfloat16 [3, 4]"));
}

TEST_F(ExecutorTest, ABfloat16BoundaryIsRefusedWhereThePlanSaysFp32) {
  Tag tag;
  tag.kind = v1::MESSAGE_KIND_GRADIENT;
  tag.from_stage = 2;
  tag.step = 1;
  tag.chunk = 1;
  EXPECT_THAT(inbox_->Prepare(tag, ElementType::kBfloat16, {3, 4}).status().message(),
              HasSubstr("bfloat16 [3, 4] arrived, expected float32 [3, 4]"));
}

TEST_F(KeepingExecutorTest, KeepsEverythingInForwardWhereTheListHasNoRecompute) {
  ActivationArrives(0, 1);
  ActivationArrives(1, 1);
  GradientArrives(0, 1);
  GradientArrives(1, 1);
  DecisionArrives(1, 1, 0);
  ASSERT_TRUE(executor_->RunStep(1).ok());
  EXPECT_THAT(log_, Contains("F0 keep"));
  EXPECT_THAT(log_, Contains("F1 keep"));
  EXPECT_THAT(log_, Contains("B0 kept"));
}

TEST_F(ExecutorTest, AnUnmetWaitNamesWorkerStageStepMicroBatchAndPeer) {
  ActivationArrives(0, 1);
  const absl::Status status = executor_->RunStep(1).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status));
  EXPECT_EQ(
      status.message(),
      "worker w1, stage 1, step 1, micro-batch 1: waited 0.1 s for the activation from stage 0 "
      "(worker w0)");
  EXPECT_EQ(exchange_->blamed_stage(), 0);
  EXPECT_EQ(exchange_->position().micro_batch, 1);
}

TEST_F(ExecutorTest, ALostPeerIsNamedWithTheCause) {
  ActivationArrives(0, 1);
  ActivationArrives(1, 1);
  inbox_->Fail(2, absl::UnavailableError("connection reset"));
  const absl::Status status = executor_->RunStep(1).status();
  EXPECT_EQ(
      status.message(),
      "worker w1, stage 1, step 1, micro-batch 0: lost stage 2 (worker w2) while waiting for its "
      "gradient: connection reset");
  EXPECT_EQ(exchange_->blamed_stage(), 2);
}

TEST_F(ExecutorTest, AFailedSendIsNamedWithTheCause) {
  ActivationArrives(0, 1);
  outbox_.failure = absl::UnavailableError("broken pipe");
  const absl::Status status = executor_->RunStep(1).status();
  EXPECT_EQ(
      status.message(),
      "worker w1, stage 1, step 1, micro-batch 0: lost stage 2 (worker w2) while sending it the "
      "activation: broken pipe");
  EXPECT_EQ(exchange_->blamed_stage(), 2);
}

TEST_F(ExecutorTest, ACancelledStageComputesNothingMore) {
  ActivationArrives(0, 1);
  cancelled_ = true;
  EXPECT_TRUE(absl::IsCancelled(executor_->RunStep(1).status()));
  EXPECT_THAT(log_, ElementsAre("zero"));
  EXPECT_EQ(exchange_->blamed_stage(), -1);
}

TEST_F(ExecutorTest, AClosedInboxEndsAWaitWithoutBlame) {
  inbox_->Close();
  EXPECT_TRUE(absl::IsCancelled(executor_->RunStep(1).status()));
  EXPECT_EQ(exchange_->blamed_stage(), -1);
}

TEST_F(ExecutorTest, ADecisionToStopAppliesNothing) {
  ActivationArrives(0, 1);
  ActivationArrives(1, 1);
  GradientArrives(0, 1);
  GradientArrives(1, 1);
  DecisionArrives(1, std::numeric_limits<double>::quiet_NaN(), 1);
  const absl::StatusOr<StepOutcome> outcome = executor_->RunStep(1);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->reason, "the loss became NaN in step 1");
  EXPECT_TRUE(outcome->verdict == Verdict{.fate = Fate::kStop});
  EXPECT_THAT(log_, Not(Contains(HasSubstr("update"))));
}

TEST_F(ExecutorTest, ObeysTheVerdictAndPassesItOn) {
  ActivationArrives(0, 1);
  ActivationArrives(1, 1);
  GradientArrives(0, 1);
  GradientArrives(1, 1);
  const Verdict verdict = {.fate = Fate::kSkip, .checkpoint = true, .leave = true};
  DecisionArrives(1, 7, NumberOf(verdict));
  const absl::StatusOr<StepOutcome> outcome = executor_->RunStep(1);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_TRUE(outcome->verdict == verdict);
  EXPECT_NE(outcome->report.skipped(), "");
  EXPECT_THAT(log_, Contains(HasSubstr("to 2 = 1 7 42")));
  EXPECT_THAT(log_, Not(Contains(HasSubstr("update"))));
}

TEST_F(ExecutorTest, ANumberThatIsNoVerdictIsAnErrorThatNamesItsSender) {
  ActivationArrives(0, 1);
  ActivationArrives(1, 1);
  GradientArrives(0, 1);
  GradientArrives(1, 1);
  DecisionArrives(1, 1, 64);
  EXPECT_EQ(std::string(executor_->RunStep(1).status().message()),
            "worker w1, stage 1, step 1: stage 0: 64 is not a verdict about a step");
}

TEST_F(ExecutorTest, TheFlightRecordTellsTheStepInOrder) {
  ActivationArrives(0, 1);
  (void)executor_->RunStep(1);
  std::vector<std::string> entries = recorder_.Entries();
  for (std::string& entry : entries) entry = entry.substr(entry.find(' ') + 1);
  EXPECT_THAT(
      entries,
      ElementsAre(
          "step 1, micro-batch 0: waiting for the activation from stage 0 (worker w0)",
          "step 1, micro-batch 0: took the activation from stage 0 (worker w0)",
          "step 1, micro-batch 0: forward",
          "step 1, micro-batch 0: sending the activation to stage 2 (worker w2)",
          "step 1, micro-batch 1: waiting for the activation from stage 0 (worker w0)",
          "step 1, micro-batch 1: waited 0.1 s for the activation from stage 0 (worker w0)"));
}

TEST_F(ExecutorTest, NothingUnexpectedIsLetIn) {
  struct Case {
    const char* name;
    v1::MessageKind kind;
    int from;
    int64_t step;
    int chunk, micro_batch;
  };
  const Case cases[] = {
      {"a gradient from upstream", v1::MESSAGE_KIND_GRADIENT, 0, 1, 1, 0},
      {"an activation from downstream", v1::MESSAGE_KIND_ACTIVATION, 2, 1, 1, 0},
      {"a tied gradient in the middle", v1::MESSAGE_KIND_TIED_GRADIENT, 2, 1, 1, 0},
      {"a token while training", v1::MESSAGE_KIND_TOKEN, 2, 1, 1, 0},
      {"micro-batch 2 of 2", v1::MESSAGE_KIND_ACTIVATION, 0, 1, 1, 2},
      {"a negative micro-batch", v1::MESSAGE_KIND_ACTIVATION, 0, 1, 1, -1},
      {"step 0", v1::MESSAGE_KIND_ACTIVATION, 0, 0, 1, 0},
      {"a step past the last", v1::MESSAGE_KIND_ACTIVATION, 0, 4, 1, 0},
      {"another chunk", v1::MESSAGE_KIND_ACTIVATION, 0, 1, 2, 0},
      {"no kind", v1::MESSAGE_KIND_UNSPECIFIED, 0, 1, 1, 0},
  };
  for (const Case& c : cases) {
    Tag tag;
    tag.kind = c.kind;
    tag.from_stage = c.from;
    tag.step = c.step;
    tag.chunk = c.chunk;
    tag.micro_batch = c.micro_batch;
    EXPECT_TRUE(absl::IsInvalidArgument(Expect(job_, pools_, tag).status())) << c.name;
  }
}

TEST(ClipScale, IsPyTorchs) {
  EXPECT_EQ(ClipScale(0, 100), 1);
  EXPECT_EQ(ClipScale(1, 0.5), 1);
  EXPECT_DOUBLE_EQ(ClipScale(1, 4), 1 / (4 + 1e-6));
}

}  // namespace
}  // namespace headrace
