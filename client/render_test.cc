#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <string>

#include "client/console.h"
#include "client/exit_code.h"
#include "client/render/human.h"
#include "client/render/job.h"
#include "client/render/json.h"
#include "client/render/plan.h"
#include "client/render/progress.h"
#include "client/render/table.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Human, SaysTimesAsPeopleDo) {
  EXPECT_EQ(FormatSeconds(0), "0 s");
  EXPECT_EQ(FormatSeconds(0.00085), "850 µs");
  EXPECT_EQ(FormatSeconds(0.01234), "12.3 ms");
  EXPECT_EQ(FormatSeconds(4.21), "4.2 s");
  EXPECT_EQ(FormatSeconds(59.96), "1m 00s");
  EXPECT_EQ(FormatSeconds(187), "3m 07s");
  EXPECT_EQ(FormatSeconds(7500), "2h 05m");
  EXPECT_EQ(FormatSeconds(3 * 86400 + 4 * 3600), "3d 04h");
  EXPECT_EQ(FormatSeconds(-1), "?");
  EXPECT_EQ(FormatSeconds(std::nan("")), "?");
  EXPECT_EQ(FormatShare(0.125), "12.5 %");
  EXPECT_EQ(FormatUnixTime(0), "");
}

TEST(Table, AlignsCutsAndLeavesNoTrailingSpaces) {
  Table table({{"ID"}, {"STEP", Align::kRight}, {"MESSAGE"}});
  table.Add({"j1", "7/10", "a long message of many words"});
  table.Add({"j12", "120/300", ""});
  EXPECT_EQ(table.Render(80),
            "ID      STEP  MESSAGE\n"
            "j1      7/10  a long message of many words\n"
            "j12  120/300\n");
  EXPECT_EQ(table.Render(24),
            "ID      STEP  MESSAGE\n"
            "j1      7/10  a long me…\n"
            "j12  120/300\n");
  EXPECT_EQ(DisplayWidth("µ…x"), 3);
}

TEST(JsonOutput, KeepsNamesNumbersAndEveryBitOfADouble) {
  v1::Job job;
  job.set_id("j1");
  job.set_state(v1::JOB_STATE_RUNNING);
  job.mutable_spec()->mutable_data()->set_seed(18446744073709551615u);
  auto* step = job.add_steps();
  step->set_step(9007199254740993);
  step->set_loss(0.1 + 0.2);
  step->set_gradient_norm(std::numeric_limits<double>::infinity());
  const Json json = Json::parse(Print(ToJson(job), Format::kJson));
  EXPECT_EQ(json["state"], "running");
  EXPECT_EQ(json["spec"]["data"]["seed"].get<uint64_t>(), 18446744073709551615u);
  EXPECT_EQ(json["steps"][0]["step"].get<int64_t>(), 9007199254740993);
  EXPECT_EQ(json["steps"][0]["loss"].get<double>(), 0.1 + 0.2);
  EXPECT_TRUE(json["steps"][0]["gradient_norm"].is_null());
  EXPECT_FALSE(json["steps"][0].contains("validation_loss"));
  EXPECT_FALSE(json.contains("plan"));
  EXPECT_FALSE(json.contains("message"));  // an empty text is one that is not set
  EXPECT_TRUE(json["links"].is_array());
}

TEST(YamlOutput, ReadsBackAsWritten) {
  const Json json = {{"name", "bible"},       {"quoted", "yes"},
                     {"text", "a: b\n"},      {"empty", Json::array()},
                     {"list", {1, "x", 2.5}}, {"jobs", {{{"id", "j1"}, {"deep", {{"k", true}}}}}}};
  EXPECT_EQ(Print(json, Format::kYaml),
            "name: bible\nquoted: \"yes\"\ntext: \"a: b\\n\"\nempty: []\n"
            "list:\n  - 1\n  - x\n  - 2.5\njobs:\n  - id: j1\n    deep:\n      k: true\n");
}

TEST(ConsoleText, CannotSteerATerminal) {
  EXPECT_EQ(Printable("a\x1b[2Jb\n\tc\x7f"), "a\\x1b[2Jb\n\tc\\x7f");
}

ProgressState HalfWay() {
  ProgressState state;
  state.name = "bible";
  state.total_steps = 300;
  state.step.set_step(150);
  state.step.set_loss(1.83421);
  state.step.set_tokens(2048);
  state.step.set_bubble(0.1116);
  state.mean_step_s = 0.5;
  state.validation_loss = 1.9;
  return state;
}

TEST(ProgressText, FitsTheBarToTheTerminal) {
  const std::string facts =
      "150/300  loss 1.8342  val 1.9000  4.1 K tok/s  bubble 11.2 %  ETA 1m 15s";
  EXPECT_EQ(RenderBar(HalfWay(), 120), "bible  [###############...............]  " + facts);
  EXPECT_EQ(RenderBar(HalfWay(), 95), "bible  [######......]  " + facts);
  EXPECT_EQ(RenderBar(HalfWay(), 80), "bible  " + facts);
  EXPECT_EQ(RenderBar(HalfWay(), 20), "bible  150/300  los…");
  EXPECT_EQ(RenderStepLine(HalfWay()), "step " + facts);
}

TEST(ProgressText, IsPlainLinesWithoutATerminalAndNotEveryStep) {
  std::ostringstream out, err;
  Console console;
  console.out = &out;
  console.err = &err;
  {
    Progress progress(console);
    v1::Job job;
    job.set_id("j1");
    job.set_name("bible");
    job.set_state(v1::JOB_STATE_RUNNING);
    job.mutable_spec()->mutable_training()->set_steps(100);
    progress.OnJob(job);
    progress.OnJob(job);
    for (int s = 1; s <= 100; ++s) {
      v1::StepResult step = HalfWay().step;
      step.set_step(s);
      step.set_seconds(0.1);
      progress.OnStep(step);
    }
  }
  const std::string text = err.str();
  EXPECT_THAT(text, ::testing::StartsWith("job j1 (bible) running\nstep 1/100  loss 1.8342"));
  EXPECT_THAT(text, HasSubstr("step 100/100"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 52);
  EXPECT_THAT(text, ::testing::Not(HasSubstr("\r")));
  EXPECT_EQ(out.str(), "");
}

v1::Job FailedJob() {
  v1::Job job;
  job.set_id("j3");
  job.set_name("bible");
  job.set_state(v1::JOB_STATE_FAILED);
  job.set_message("worker w1 (stage 1) lost");
  job.mutable_spec()->mutable_training()->set_steps(300);
  job.set_step(2);
  for (int s = 1; s <= 2; ++s) {
    v1::StepResult* step = job.add_steps();
    step->set_step(s);
    step->set_loss(5.5 - s);
    step->set_tokens(1024);
    step->set_seconds(0.5);
    step->set_bubble(0.25);
    for (int k = 0; k < 2; ++k) {
      v1::StageSeconds* seconds = step->add_stage_seconds();
      seconds->set_stage(k);
      seconds->set_wall(0.5);
      seconds->set_compute(0.3);
      seconds->set_recompute(0.05);
      seconds->set_wait_receive(0.1);
      seconds->set_wait_send(0.02);
      seconds->set_optimizer(0.025);
    }
  }
  v1::Plan* plan = job.mutable_plan();
  plan->set_stages(2);
  plan->set_micro_batches(3);
  plan->set_schedule(v1::SCHEDULE_KIND_1F1B);
  plan->set_recompute(v1::RECOMPUTE_MODE_ALWAYS);
  plan->set_precision(v1::PRECISION_BF16);
  plan->set_bf16_emulate(true);
  for (int n : {3, 2, 2}) plan->add_micro_batch_sequences(n);
  plan->set_step_s(0.4);
  plan->set_bubble(0.2);
  plan->set_ideal_bubble(0.25);
  plan->set_parameters(1234567);
  for (const char* name : {"embedding", "block 0", "block 1", "head"}) plan->add_layer_names(name);
  for (int k = 0; k < 2; ++k) {
    v1::StagePlan* stage = plan->add_stage();
    stage->set_stage(k);
    stage->set_first_layer(2 * k);
    stage->set_end_layer(2 * k + 2);
    stage->set_worker(k == 0 ? "w0" : "w1");
    stage->set_forward_s(0.01);
    stage->set_backward_s(0.02);
    stage->set_parameters(600000);
    stage->set_memory_limit_bytes(int64_t{2} << 30);
    stage->mutable_memory()->set_weights(3 << 20);
    stage->mutable_memory()->set_stash(512);
    job.add_peak_memory()->set_weights(3 << 20);
  }
  plan->set_grid("0F0 0F1\n1F0 1B0\n");
  v1::LinkInfo* link = job.add_links();
  link->set_to_stage(1);
  link->set_transport("grpc");
  link->set_address("unix:/tmp/x/w1");
  link->set_reason("the only transport");
  v1::FlightRecord* record = job.add_flight_records();
  record->set_worker("w0");
  record->add_entries("step 3: 0F0");
  record->add_entries("waits for gradient of micro-batch 0");
  return job;
}

TEST(DescribeText, ShowsPlanMemoryTimesLinksFailureAndFlightRecorders) {
  const std::string text = RenderJob(FailedJob(), 120);
  for (const char* part : {
           "job        j3 bible\nstate      failed, step 2/300\nbecause    worker w1 (stage 1) "
           "lost\n",
           "loss       3.5000 at step 2, from 4.5000\n",
           "plan       2 stages, 3 micro-batches (1 × 3 + 2 × 2 sequences), schedule 1f1b, "
           "recompute "
           "always, precision bf16 (emulated)\n",
           "predicted  400 ms a step, bubble 20.0 % beside (K−1)/(M+K−1) = 25.0 %; 1.2 M "
           "parameters\n",
           "      0  w0      embedding … block 0",
           "      0  predicted  3.0 MiB",
           "          measured  3.0 MiB",
           "schedule\n  0F0 0F1\n  1F0 1B0\n",
           "      0   300 ms      50 ms        100 ms      20 ms      25 ms  500 ms  25.0 %\n",
           "bubble 25.0 % measured beside (K−1)/(M+K−1) = 25.0 %\n",
           "links\n  FROM  TO  TRANSPORT  ADDRESS         WHY\n"
           "     0   1  grpc       unix:/tmp/x/w1  the only transport\n",
           "flight recorder of worker w0 (stage 0), oldest first\n  step 3: 0F0\n"
           "  waits for gradient of micro-batch 0\n",
       }) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

v1::Job RecoveredJob() {
  v1::Job job = FailedJob();
  job.set_state(v1::JOB_STATE_RECOVERING);
  job.set_message("worker w1 (stage 1) lost; waits for a worker of 3.0 MiB");
  job.set_from_job("j2");
  job.set_from_step(40);
  for (const char* worker : {"w0", "w2"}) job.add_placement()->set_worker(worker);
  job.add_skipped()->set_first(50);
  job.mutable_skipped(0)->set_last(60);
  job.add_skipped()->set_first(70);
  job.mutable_skipped(1)->set_last(70);
  job.mutable_steps(1)->set_skipped("the loss is NaN in stage 1");
  for (int step : {40, 60}) {
    v1::Checkpoint* checkpoint = job.add_checkpoints();
    checkpoint->set_step(step);
    checkpoint->set_generation(step == 40 ? 0 : 2);
    checkpoint->set_unix_seconds(1e9);
    checkpoint->set_size_bytes(3 << 20);
    checkpoint->add_slices()->set_sha256("ab");
  }
  job.mutable_checkpoints(1)->mutable_slices(0)->set_uri("file:///mnt/c/j3/60/0-4-ab.safetensors");
  job.mutable_checkpoints(1)->set_damaged("slice of layers 0 to 3 is truncated");
  v1::Recovery* recovery = job.add_recoveries();
  recovery->set_generation(3);
  recovery->set_cause("worker w1 lost");
  recovery->set_failed_unix_s(1e9);
  recovery->set_detected_unix_s(1e9 + 2);
  recovery->set_planned_unix_s(1e9 + 2.5);
  recovery->set_loaded_unix_s(1e9 + 4);
  recovery->set_from_step(60);
  recovery->set_lost_step(75);
  recovery->set_source("replicas");
  return job;
}

TEST(DescribeText, ShowsCheckpointsRecoveriesAndWhatWasLeftOut) {
  const std::string text = RenderJob(RecoveredJob(), 200);
  const std::string at = FormatUnixTime(1e9), noticed = FormatUnixTime(1e9 + 2);
  for (const std::string& part : {
           std::string(
               "state      recovering, step 2/300\nbecause    worker w1 (stage 1) lost; "
               "waits for a worker of 3.0 MiB\nfrom       job j2 after step 40\n"
               "runs on    w0, w2\nleft out   steps 50–60, 70 (recovery.on_nan: rollback)\n"
               "skipped    1 step was not applied, the last 2: the loss is NaN in stage 1\n"),
           "checkpoints\n  STEP  GENERATION  MADE                 SLICES     SIZE  WHERE"
           "                    STATE\n    40  taken over  " +
               at + "       1  3.0 MiB  the coordinator's store  good\n    60           2  " + at +
               "       1  3.0 MiB  /mnt/c/j3/60             damaged: slice of layers 0 to 3 is "
               "truncated\n",
           "         3  " + noticed +
               "      2.0 s   500 ms  1.5 s       …     15  replicas 60  worker w1 lost\n",
       }) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(DescribeText, HasNoSectionsForWhatNeverHappened) {
  const std::string text = RenderJob(FailedJob(), 200);
  for (const char* word :
       {"checkpoints", "recoveries", "left out", "skipped", "runs on", "from "}) {
    EXPECT_THAT(text, Not(HasSubstr(std::string("\n") + word)));
  }
}

TEST(WorkersText, MarksWhatIsCordoned) {
  v1::ListWorkersResponse response;
  for (const char* job : {"", "j3"}) {
    v1::WorkerInfo* worker = response.add_workers();
    worker->set_name("w");
    worker->set_alive(true);
    worker->set_job_id(job);
    worker->set_cordoned(true);
  }
  EXPECT_THAT(RenderWorkerTable(response, 200), HasSubstr("w     free, cordoned"));
  EXPECT_THAT(RenderWorkerTable(response, 200), HasSubstr("w     busy, cordoned  j3"));
}

TEST(ProgressText, SaysWhichStepWasNotApplied) {
  v1::StepResult step;
  step.set_step(118);
  EXPECT_EQ(RenderSkippedStep(step), "");
  step.set_skipped("the loss is NaN");
  EXPECT_EQ(RenderSkippedStep(step), "step 118 was not applied: the loss is NaN");
}

TEST(PlanText, SaysWhatItsSecondsRestOn) {
  v1::Plan plan = FailedJob().plan();
  const auto with = [&](v1::CostSource first, v1::CostSource second) {
    plan.mutable_stage(0)->set_cost_source(first);
    plan.mutable_stage(1)->set_cost_source(second);
    return RenderPlan(plan, {}, 120);
  };
  const auto flops = v1::COST_SOURCE_FLOPS, measured = v1::COST_SOURCE_MEASURED;
  EXPECT_THAT(with(flops, flops), HasSubstr("400 ms a step by FLOPs, bubble"));
  EXPECT_THAT(with(measured, measured), HasSubstr("400 ms a step by measured layers, bubble"));
  for (const std::string& text : {with(measured, flops), with(measured, v1::COST_SOURCE_MIXED)}) {
    EXPECT_THAT(text, HasSubstr("400 ms a step by measured layers and FLOPs, bubble"));
  }
}

TEST(PlanText, NamesLinksThatAreSlowerThanTheirReceivers) {
  v1::Plan plan = FailedJob().plan();  // 10 ms forward and 20 ms backward on either stage
  plan.mutable_stage(0)->set_activation_s(0.03);
  plan.mutable_stage(1)->set_gradient_s(0.031);
  const std::string text = RenderPlan(plan, {}, 120);
  EXPECT_THAT(text, HasSubstr("slow link  the gradient from stage 1 takes 31 ms a micro-batch, "
                              "longer than the 30 ms stage 0 works on one: the link sets the "
                              "pace\n"));
  EXPECT_THAT(text, Not(HasSubstr("the activation from")));
}

TEST(PlanText, SaysWhatLinksExposeAndHowManyMicroBatchesWouldHideThem) {
  v1::Plan plan = FailedJob().plan();  // 400 ms a step
  plan.set_exposed_s(0.003);
  EXPECT_THAT(RenderPlan(plan, {}, 120), Not(HasSubstr("links")));
  plan.set_exposed_s(0.04);
  EXPECT_THAT(RenderPlan(plan, {}, 120),
              HasSubstr("\nlinks      expose 40 ms of a step, 10.0 %\n"));
  plan.mutable_link_advice()->set_micro_batches(12);
  plan.mutable_link_advice()->set_batch_size(28);
  plan.mutable_link_advice()->set_compute_share(0.96);
  EXPECT_THAT(RenderPlan(plan, {}, 120),
              HasSubstr("expose 40 ms of a step, 10.0 %; 4.0 % with training.micro_batches: 12 and "
                        "training.batch_size: 28 (as large micro-batches)\n"));
}

TEST(PlanText, SaysThatBf16BoundariesChangeTheNumbers) {
  v1::Plan plan = FailedJob().plan();
  EXPECT_THAT(RenderPlan(plan, {}, 120), Not(HasSubstr("boundaries")));
  plan.set_boundary_dtype(v1::BOUNDARY_DTYPE_BF16);
  EXPECT_THAT(RenderPlan(plan, {}, 120),
              HasSubstr("\nboundaries bf16: half the bytes between stages; numbers differ from "
                        "fp32's and depend on where stages begin\n"));
}

TEST(PlanText, SaysThatCudaStagesInBf16CanSendHalfTheBytes) {
  v1::Plan plan = FailedJob().plan();
  for (v1::StagePlan& stage : *plan.mutable_stage()) stage.set_device("cuda");
  plan.set_precision(v1::PRECISION_FP32);
  EXPECT_THAT(RenderPlan(plan, {}, 120), Not(HasSubstr("boundaries")));
  plan.set_precision(v1::PRECISION_BF16);
  EXPECT_THAT(RenderPlan(plan, {}, 120),
              HasSubstr("\nboundaries fp32: pipeline.boundary_dtype: bf16 would halve the bytes "
                        "between stages with the same numbers"));
  plan.set_boundary_dtype(v1::BOUNDARY_DTYPE_BF16);
  EXPECT_THAT(RenderPlan(plan, {}, 120),
              HasSubstr("\nboundaries bf16: half the bytes between stages; numbers are fp32's"));
  plan.mutable_stage(1)->clear_device();
  EXPECT_THAT(RenderPlan(plan, {}, 120), HasSubstr("numbers differ from fp32's"));
}

TEST(PlanText, SaysWhereFp32IsMultipliedByTf32) {
  v1::Plan plan = FailedJob().plan();
  plan.set_precision(v1::PRECISION_FP32);
  plan.set_bf16_emulate(false);
  plan.set_tf32(true);
  EXPECT_THAT(RenderPlan(plan, {}, 120), HasSubstr(", precision fp32 (TF32 on CUDA devices)\n"));
}

TEST(OutcomeText, IsOneLine) {
  EXPECT_EQ(RenderOutcome(FailedJob()),
            "job j3 (bible) failed: worker w1 (stage 1) lost; step 2/300, loss 3.5000");
}

TEST(ExitCodes, FollowFromTheStatusInOnePlace) {
  const struct {
    absl::StatusCode status;
    int code;
  } kCases[] = {
      {absl::StatusCode::kOk, 0},
      {absl::StatusCode::kAborted, 1},
      {absl::StatusCode::kInternal, 1},
      {absl::StatusCode::kUnknown, 1},
      {absl::StatusCode::kDataLoss, 1},
      {absl::StatusCode::kInvalidArgument, 2},
      {absl::StatusCode::kNotFound, 3},
      {absl::StatusCode::kUnavailable, 4},
      {absl::StatusCode::kFailedPrecondition, 5},
      {absl::StatusCode::kAlreadyExists, 5},
      {absl::StatusCode::kResourceExhausted, 5},
      {absl::StatusCode::kPermissionDenied, 5},
      {absl::StatusCode::kDeadlineExceeded, 124},
      {absl::StatusCode::kCancelled, 130},
  };
  for (const auto& c : kCases) {
    const absl::Status status =
        c.status == absl::StatusCode::kOk ? absl::OkStatus() : absl::Status(c.status, "x");
    EXPECT_EQ(static_cast<int>(ExitCodeOf(status)), c.code) << status;
  }
}

}  // namespace
}  // namespace headrace
