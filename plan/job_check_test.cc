#include "plan/job_check.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

namespace headrace {
namespace {

using ::testing::StartsWith;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

v1::JobSpec GoodJob() {
  v1::JobSpec spec;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
      R"pb(
        name: "bible"
        model {
          family: MODEL_FAMILY_GPT2
          vocab_size: 256
          n_layer: 2
          n_embd: 8
          n_head: 2
          n_positions: 64
        }
        data { text: "bible.txt" tokenizer: TOKENIZER_BYTE }
        training {
          steps: 10
          batch_size: 8
          micro_batches: 4
          sequence_length: 16
          optimizer { kind: OPTIMIZER_KIND_ADAMW learning_rate: 0.001 }
        }
      )pb",
      &spec));
  return spec;
}

v1::Dataset GoodDataset() {
  v1::Dataset dataset;
  dataset.set_num_tokens(1000);
  dataset.set_max_token(255);
  dataset.set_token_bytes(1);
  return dataset;
}

TEST(JobCheckTest, AcceptsAGoodJob) {
  const v1::Dataset dataset = GoodDataset();
  EXPECT_TRUE(ValidateJob(GoodJob(), &dataset).ok()) << ValidateJob(GoodJob(), &dataset);
  EXPECT_TRUE(ValidateJob(GoodJob()).ok());
}

struct Row {
  const char* message;  // begins with
  std::function<void(v1::JobSpec*)> spoil;
};

void ExpectRefusals(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    v1::JobSpec spec = GoodJob();
    row.spoil(&spec);
    const absl::Status status = ValidateJob(spec);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << row.message;
    EXPECT_THAT(std::string(status.message()), StartsWith(row.message));
  }
}

TEST(JobCheckTest, RefusesBadNames) {
  ExpectRefusals({
      {"name: missing; expected a name", [](auto* s) { s->clear_name(); }},
      {"name: \"../x\"; expected 1 to 63 letters", [](auto* s) { s->set_name("../x"); }},
      {"name: \"a b\"; expected", [](auto* s) { s->set_name("a b"); }},
      {"name: \"a?\"; expected", [](auto* s) { s->set_name("a\n"); }},
      {"name: \"-x\"; expected", [](auto* s) { s->set_name("-x"); }},
      {"name: \"j12\"; expected a name that does not look like a job's id",
       [](auto* s) { s->set_name("j12"); }},
      {"name: \"aaaa", [](auto* s) { s->set_name(std::string(64, 'a')); }},
  });
}

TEST(JobCheckTest, RefusesBadData) {
  ExpectRefusals({
      {"data.text: missing; expected exactly one of", [](auto* s) { s->mutable_data()->Clear(); }},
      {"data.text: set beside data.tokens", [](auto* s) { s->mutable_data()->set_tokens("x"); }},
      {"data.tokenizer: missing; expected byte",
       [](auto* s) { s->mutable_data()->clear_tokenizer(); }},
      {"data.tokenizer: unknown value 9; expected byte",
       [](auto* s) { s->mutable_data()->set_tokenizer(static_cast<v1::Tokenizer>(9)); }},
      {"data.token_type: set beside data.text; expected it only with data.tokens",
       [](auto* s) { s->mutable_data()->set_token_type(v1::TOKEN_TYPE_UINT16); }},
      {"data.token_type: missing; expected uint16 or uint32",
       [](auto* s) {
         s->mutable_data()->Clear();
         s->mutable_data()->set_tokens("x.bin");
       }},
      {"data.validation_split: 1; expected a number from 0 up to, not including, 1",
       [](auto* s) { s->mutable_data()->set_validation_split(1); }},
      {"data.validation_split: -0.1;",
       [](auto* s) { s->mutable_data()->set_validation_split(-0.1); }},
      {"data.validation_split: nan;",
       [](auto* s) { s->mutable_data()->set_validation_split(kNan); }},
  });
}

TEST(JobCheckTest, RefusesToEvaluateOnNothing) {
  ExpectRefusals(
      {{"training.eval_every: 2; expected 0, since data.validation_split is 0", [](auto* s) {
          s->mutable_training()->set_eval_every(2);
          s->mutable_data()->set_validation_split(0);
        }}});
}

TEST(JobCheckTest, RefusesBadModels) {
  ExpectRefusals({
      {"model.family: missing", [](auto* s) { s->mutable_model()->clear_family(); }},
      {"model.n_layer: 1000000000000; expected",
       [](auto* s) { s->mutable_model()->set_n_layer(1'000'000'000'000); }},
      {"model.n_embd: 7; expected", [](auto* s) { s->mutable_model()->set_n_embd(7); }},
      {"model.rope_theta: ", [](auto* s) { s->mutable_model()->set_rope_theta(10); }},
  });
}

TEST(JobCheckTest, RefusesBadTrainingSizes) {
  ExpectRefusals({
      {"training.steps: 0; expected a whole number from 1 to 1000000000",
       [](auto* s) { s->mutable_training()->set_steps(0); }},
      {"training.steps: -3;", [](auto* s) { s->mutable_training()->set_steps(-3); }},
      {"training.batch_size: 0;", [](auto* s) { s->mutable_training()->set_batch_size(0); }},
      {"training.batch_size: 1000000000000;",
       [](auto* s) { s->mutable_training()->set_batch_size(1'000'000'000'000); }},
      {"training.micro_batches: 0; expected a whole number from 1 to 8 (training.batch_size",
       [](auto* s) { s->mutable_training()->set_micro_batches(0); }},
      {"training.micro_batches: 9; expected a whole number from 1 to 8",
       [](auto* s) { s->mutable_training()->set_micro_batches(9); }},
      {"training.sequence_length: 65; expected a whole number from 1 to 64 (the model's context)",
       [](auto* s) { s->mutable_training()->set_sequence_length(65); }},
      {"training.sequence_length: 0;",
       [](auto* s) { s->mutable_training()->set_sequence_length(0); }},
      {"training.clip_norm: -1; expected a finite number, 0 or more",
       [](auto* s) { s->mutable_training()->set_clip_norm(-1); }},
      {"training.clip_norm: nan;", [](auto* s) { s->mutable_training()->set_clip_norm(kNan); }},
      {"training.eval_every: -1;", [](auto* s) { s->mutable_training()->set_eval_every(-1); }},
      {"training.eval_batches: 0;", [](auto* s) { s->mutable_training()->set_eval_batches(0); }},
      {"training.precision: unknown value 7; expected fp32 or bf16",
       [](auto* s) { s->mutable_training()->set_precision(static_cast<v1::Precision>(7)); }},
      {"training.bf16_emulate: true; expected it only with precision: bf16",
       [](auto* s) { s->mutable_training()->set_bf16_emulate(true); }},
      {"training.tf32: true; expected it only with precision: fp32",
       [](auto* s) {
         s->mutable_training()->set_precision(v1::PRECISION_BF16);
         s->mutable_training()->set_tf32(true);
       }},
  });
}

TEST(JobCheckTest, RefusesBadOptimizerNumbers) {
  const auto optimizer = [](auto change) {
    return [change](v1::JobSpec* s) { change(s->mutable_training()->mutable_optimizer()); };
  };
  ExpectRefusals({
      {"training.optimizer.kind: missing; expected adamw, sgd or rmsprop",
       optimizer([](auto* o) { o->clear_kind(); })},
      {"training.optimizer.learning_rate: nan; expected a finite number above 0",
       optimizer([](auto* o) { o->set_learning_rate(kNan); })},
      {"training.optimizer.learning_rate: inf;",
       optimizer([](auto* o) { o->set_learning_rate(kInf); })},
      {"training.optimizer.learning_rate: 1e+39; expected a finite number above 0, at most 3.4e38 "
       "(workers compute in float)",
       optimizer([](auto* o) { o->set_learning_rate(1e39); })},
      {"training.optimizer.weight_decay: 1e+39; expected a finite number, 0 or more, at most",
       optimizer([](auto* o) { o->set_weight_decay(1e39); })},
      {"training.optimizer.learning_rate: -0.1;",
       optimizer([](auto* o) { o->set_learning_rate(-0.1); })},
      {"training.optimizer.learning_rate: 0;",
       optimizer([](auto* o) { o->clear_learning_rate(); })},
      {"training.optimizer.weight_decay: -1;", optimizer([](auto* o) { o->set_weight_decay(-1); })},
      {"training.optimizer.beta1: 1; expected a number from 0 up to, not including, 1",
       optimizer([](auto* o) { o->set_beta1(1); })},
      {"training.optimizer.beta2: nan;", optimizer([](auto* o) { o->set_beta2(kNan); })},
      {"training.optimizer.epsilon: 0;", optimizer([](auto* o) { o->set_epsilon(0); })},
      {"training.optimizer.momentum: not a key of this optimizer; expected it only with sgd and",
       optimizer([](auto* o) { o->set_momentum(0.9); })},
      {"training.optimizer.nesterov: true; expected it only with a momentum above 0",
       optimizer([](auto* o) {
         o->set_kind(v1::OPTIMIZER_KIND_SGD);
         o->set_nesterov(true);
       })},
      {"training.optimizer.groups[0].match: missing", optimizer([](auto* o) { o->add_groups(); })},
      {"training.optimizer.groups[1].weight_decay: -1;", optimizer([](auto* o) {
         o->add_groups()->set_match("*");
         o->add_groups()->set_match("*.bias");
         o->mutable_groups(1)->set_weight_decay(-1);
       })},
  });
}

TEST(JobCheckTest, RefusesBadLearningRateSchedules) {
  const auto rate = [](auto change) {
    return [change](v1::JobSpec* s) { change(s->mutable_training()->mutable_learning_rate()); };
  };
  ExpectRefusals({
      {"training.learning_rate.kind: unknown value 8; expected constant, linear, cosine or",
       rate([](auto* r) { r->set_kind(static_cast<v1::LearningRateKind>(8)); })},
      {"training.learning_rate.warmup_steps: -1;", rate([](auto* r) { r->set_warmup_steps(-1); })},
      {"training.learning_rate.warmup_steps: 0; expected 1 or more: inverse_sqrt",
       rate([](auto* r) { r->set_kind(v1::LEARNING_RATE_KIND_INVERSE_SQRT); })},
      {"training.learning_rate.min_learning_rate: 0.1; expected at most",
       rate([](auto* r) { r->set_min_learning_rate(0.1); })},
      {"training.learning_rate.min_learning_rate: nan;",
       rate([](auto* r) { r->set_min_learning_rate(kNan); })},
  });
}

TEST(JobCheckTest, RefusesBadPipelines) {
  const auto pipeline = [](auto change) {
    return [change](v1::JobSpec* s) { change(s->mutable_pipeline()); };
  };
  ExpectRefusals({
      {"pipeline.stages: 5; expected a whole number from 1 to 4 (the model's layers: embedding",
       pipeline([](auto* p) { p->set_stages(5); })},
      {"pipeline.stages: -1;", pipeline([](auto* p) { p->set_stages(-1); })},
      {"pipeline.schedule: unknown value 5; expected gpipe or 1f1b",
       pipeline([](auto* p) { p->set_schedule(static_cast<v1::ScheduleKind>(5)); })},
      {"pipeline.recompute: unknown value 5; expected always, except_last or never",
       pipeline([](auto* p) { p->set_recompute(static_cast<v1::RecomputeMode>(5)); })},
      {"pipeline.boundary_dtype: unknown value 9; expected fp32 or bf16",
       pipeline([](auto* p) { p->set_boundary_dtype(static_cast<v1::BoundaryDtype>(9)); })},
      {"pipeline.boundary_dtype: bf16 beside pipeline.stages: 1; expected it only with 2 or more",
       pipeline([](auto* p) {
         p->set_boundary_dtype(v1::BOUNDARY_DTYPE_BF16);
         p->set_stages(1);
       })},
      {"pipeline.transport: unknown value 9; expected auto, grpc, shm, cuda_ipc or nccl",
       pipeline([](auto* p) { p->set_transport(static_cast<v1::Transport>(9)); })},
      {"pipeline.credits: -1;", pipeline([](auto* p) { p->set_credits(-1); })},
      {"pipeline.wait_timeout_s: -1;", pipeline([](auto* p) { p->set_wait_timeout_s(-1); })},
      {"pipeline.wait_timeout_s: 1e+09; expected at most",
       pipeline([](auto* p) { p->set_wait_timeout_s(1e9); })},
  });
}

TEST(JobCheckTest, RefusesDataThatDoesNotServeTheModel) {
  const struct {
    const char* message;
    int64_t num_tokens, max_token;
    double split;
  } kRows[] = {
      {"data.text: token id 256; expected ids below model.vocab_size, which is 256", 1000, 256, 0},
      {"data.text: no tokens; expected a file that has some", 0, 0, 0},
      {"data.text: 16 tokens to train on; expected at least 17: one sequence", 16, 1, 0},
      {"data.text: 16 tokens to validate on (data.validation_split 0.1 of 169); expected at "
       "least 17",
       169, 1, 0.1},
  };
  for (const auto& row : kRows) {
    v1::JobSpec spec = GoodJob();
    spec.mutable_data()->set_validation_split(row.split);
    v1::Dataset dataset = GoodDataset();
    dataset.set_num_tokens(row.num_tokens);
    dataset.set_max_token(row.max_token);
    EXPECT_THAT(std::string(ValidateJob(spec, &dataset).message()), StartsWith(row.message));
  }
}

TEST(JobCheckTest, AcceptsTheSmallestDataset) {
  v1::JobSpec spec = GoodJob();
  spec.mutable_data()->set_validation_split(0);
  v1::Dataset dataset = GoodDataset();
  dataset.set_num_tokens(17);
  EXPECT_TRUE(ValidateJob(spec, &dataset).ok());
}

}  // namespace
}  // namespace headrace
