#include "worker/layer_profiler.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "plan/layer_cost.h"
#include "worker/layer_timer.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(60);

v1::ProfileLayersRequest Request(const std::string& model) {
  v1::ProfileLayersRequest request;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
      absl::StrCat(R"pb(job_id: "j1"
                        budget_ms: 60000
                        spec { name: "small"
                               data { text: "x" tokenizer: TOKENIZER_BYTE }
                               training {
                                 steps: 1
                                 batch_size: 4
                                 micro_batches: 2
                                 sequence_length: 32
                                 optimizer { kind: OPTIMIZER_KIND_ADAMW learning_rate: 0.001 }
                               }
                               model {)pb",
                   model, "} }"),
      &request));
  return request;
}

v1::ProfileLayersRequest Gpt2(int width) {
  v1::ProfileLayersRequest request = Request(absl::StrCat(
      "family: MODEL_FAMILY_GPT2 vocab_size: 256 n_layer: 3 n_head: 2 n_positions: 32 n_embd: ",
      width));
  for (const int layer : {0, 1, 4}) request.add_layers(layer);
  return request;
}

v1::ProfileLayersRequest Llama() {
  v1::ProfileLayersRequest request = Request(
      "family: MODEL_FAMILY_LLAMA vocab_size: 256 num_hidden_layers: 3 hidden_size: 64 "
      "num_attention_heads: 4 num_key_value_heads: 2 intermediate_size: 96 "
      "max_position_embeddings: 64");
  for (const int layer : {0, 1, 4}) request.add_layers(layer);
  return request;
}

const std::function<bool()> kNever = [] { return false; };

absl::StatusOr<v1::ProfileLayersResponse> Measure(const v1::ProfileLayersRequest& request,
                                                  WorkerLimits limits = {int64_t{1} << 30, 1},
                                                  double flops_per_second = 0) {
  LayerProfiler profiler(limits, flops_per_second);
  EXPECT_TRUE(profiler.Claim().ok());
  return profiler.Run(request, kNever);
}

TEST(LayerProfilerTest, MeasuresEachKindOfLayerForwardAgainAndBackward) {
  for (const v1::ProfileLayersRequest& request : {Gpt2(64), Llama()}) {
    const auto response = Measure(request);
    ASSERT_TRUE(response.ok()) << response.status();
    ASSERT_EQ(response->profiles_size(), 3) << response->DebugString();
    for (int i = 0; i < 3; ++i) {
      const v1::LayerSeconds& seconds = response->profiles(i).seconds();
      EXPECT_EQ(response->profiles(i).layer(), request.layers(i));
      EXPECT_GE(seconds.forward_s(), 0) << i;  // a head does all in backward
      EXPECT_GE(seconds.recompute_s(), 0) << i;
      EXPECT_GT(seconds.backward_s(), 0) << i;
      EXPECT_LT(seconds.forward_s() + seconds.recompute_s() + seconds.backward_s(), 10) << i;
    }
    EXPECT_TRUE(response->passed_over().empty());
  }
}

// What it says it carves is what it may carve: a worker measures within its limit.
TEST(LayerProfilerTest, ALayerOfJustTheWorkersMemoryIsMeasuredAndOneByteLessIsPassedOver) {
  for (const v1::ProfileLayersRequest& whole : {Gpt2(64), Llama()}) {
    for (int i = 0; i < whole.layers_size(); ++i) {
      v1::ProfileLayersRequest request = whole;
      request.clear_layers();
      request.add_layers(whole.layers(i));
      StageShape layer;
      layer.model = *ResolveModel(request.spec().model());
      layer.layers = {BuildLayers(layer.model)[whole.layers(i)]};
      layer.largest = {2, 32};
      const int64_t bytes = TimedLayerBytes(layer);
      const auto fits = Measure(request, {bytes, 1});
      ASSERT_TRUE(fits.ok()) << fits.status();
      EXPECT_EQ(fits->profiles_size(), 1) << fits->DebugString();
      const auto lacks = Measure(request, {bytes - 1, 1});
      ASSERT_TRUE(lacks.ok()) << lacks.status();
      EXPECT_EQ(lacks->profiles_size(), 0);
      EXPECT_THAT(lacks->passed_over(), ElementsAre(HasSubstr("to be measured, the worker has")));
    }
  }
}

TEST(LayerProfilerTest, PassesOverWhatWouldTakeLongerThanTheBudget) {
  v1::ProfileLayersRequest request = Gpt2(64);
  request.set_budget_ms(1000);
  const auto response = Measure(request, {int64_t{1} << 30, 1}, 1e3);  // a very slow worker
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->profiles_size(), 0);
  EXPECT_EQ(response->passed_over_size(), 3);
  EXPECT_THAT(response->passed_over(1), HasSubstr("layer 1 (block 0) would take about "));
}

TEST(LayerProfilerTest, RefusesRequestsThatAreWrong) {
  v1::ProfileLayersRequest request = Gpt2(64);
  request.set_layers(1, 5);
  EXPECT_EQ(Measure(request).status(),
            absl::InvalidArgumentError("layer 5 to measure; expected 0 to 4"));
  request.set_layers(1, -1);
  EXPECT_EQ(Measure(request).status().code(), absl::StatusCode::kInvalidArgument);
  request = Gpt2(63);  // two heads
  EXPECT_EQ(Measure(request).status().code(), absl::StatusCode::kInvalidArgument);
  request = Gpt2(64);
  request.mutable_spec()->mutable_training()->set_micro_batches(0);
  EXPECT_EQ(Measure(request).status().code(), absl::StatusCode::kInvalidArgument);
  request = Gpt2(64);
  for (int i = 0; i < 100; ++i) request.add_layers(1);
  EXPECT_THAT(Measure(request).status().message(), HasSubstr("expected at most 16"));
}

TEST(LayerProfilerTest, Bf16IsMeasuredWhereTheProcessorHasIt) {
  v1::ProfileLayersRequest request = Gpt2(64);
  request.mutable_spec()->mutable_training()->set_precision(v1::PRECISION_BF16);
  EXPECT_EQ(Measure(request).status(),
            absl::FailedPreconditionError("the device of this worker does not multiply bf16"));
  request.mutable_spec()->mutable_training()->set_bf16_emulate(true);
  EXPECT_TRUE(Measure(request).ok());
}

TEST(LayerProfilerTest, OneAtATimeAndFreeAgainAfterAnError) {
  LayerProfiler profiler({int64_t{1} << 30, 1}, 0);
  ASSERT_TRUE(profiler.Claim().ok());
  EXPECT_EQ(profiler.Claim().code(), absl::StatusCode::kFailedPrecondition);
  v1::ProfileLayersRequest bad = Gpt2(64);
  bad.set_layers(0, 9);
  EXPECT_FALSE(profiler.Run(bad, kNever).ok());
  EXPECT_TRUE(profiler.Claim().ok());
  EXPECT_TRUE(profiler.Run(Gpt2(64), kNever).ok());
}

TEST(LayerProfilerTest, EndsWhenNobodyWaitsAnyMore) {
  LayerProfiler profiler({int64_t{1} << 30, 1}, 0);
  ASSERT_TRUE(profiler.Claim().ok());
  const auto response = profiler.Run(Gpt2(256), [] { return true; });
  // Looked at every few milliseconds; tiny layers may be through by then.
  EXPECT_TRUE(response.ok() || absl::IsCancelled(response.status())) << response.status();
  EXPECT_TRUE(profiler.Finish(absl::InfinitePast()));
}

TEST(LayerProfilerTest, FinishEndsWhatIsUnderWay) {
  LayerProfiler profiler({int64_t{4} << 30, 1}, 0);
  EXPECT_TRUE(profiler.Finish(absl::InfinitePast()));  // nothing is
  v1::ProfileLayersRequest request = Gpt2(512);
  request.clear_layers();
  for (int i = 0; i < 16; ++i) request.add_layers(1);  // 0.3 s each, if nobody ends it
  request.mutable_spec()->mutable_training()->set_batch_size(64);
  ASSERT_TRUE(profiler.Claim().ok());
  absl::StatusOr<v1::ProfileLayersResponse> response;
  std::thread rpc([&] { response = profiler.Run(request, kNever); });
  EXPECT_TRUE(profiler.Finish(absl::Now() + kPatience));
  rpc.join();
  EXPECT_EQ(response.status(), absl::CancelledError("the measurement was cancelled"));
}

}  // namespace
}  // namespace headrace
