// Real worker processes that compute on a CUDA device which is emulated: a fake driver answers
// (LD_LIBRARY_PATH), the module is the backend on the CPU emulation (HEADRACE_CUDA_MODULE), all else
// is what runs on a GPU host. Emulation is slow, so jobs are as small as they can be.
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/test_cluster.h"
#include "tests/cluster/tiny_job.h"
#include "tests/cuda_emulation/emulated_workers.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

TinyJob Bf16(TinyJob job) {
  // Emulated where a CPU takes part, so that any will do; a CUDA device multiplies bf16 anyway.
  job.more_training += "  precision: bf16\n  bf16_emulate: true\n";
  job.width = 64;  // heads of 32, for which there are bf16 kernels
  return job;
}

void ExpectNear(const Numbers& got, const Numbers& want, double bound, const std::string& what) {
  ASSERT_EQ(got.losses.size(), want.losses.size()) << what;
  for (size_t i = 0; i < got.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i] / want.losses[i], 1, bound) << what << ", step " << i + 1;
  }
  EXPECT_NEAR(got.validation_loss / want.validation_loss, 1, bound) << what;
}

// Four CUDA workers, for everything that goes well.
class CudaWorkers : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto cuda = TestCluster::Start({CudaWorker("w0"), CudaWorker("w1"), CudaWorker("w2"),
                                    CudaWorker("w3")});
    ASSERT_TRUE(cuda.ok()) << cuda.status();
    cuda_ = cuda->release();
    auto cpu = TestCluster::Start({CpuWorker("c0")});
    ASSERT_TRUE(cpu.ok()) << cpu.status();
    cpu_ = cpu->release();
    for (TestCluster* cluster : {cuda_, cpu_}) cluster->WriteFile("tiny.txt", TinyText());
  }
  static void TearDownTestSuite() {
    delete cuda_;
    delete cpu_;
  }

  // The same bits for every plan on CUDA workers, and the CPU's numbers but for rounding.
  static void ExpectIdentity(const TinyJob& job, const std::vector<TinyJob>& variations,
                             double bound) {
    const Numbers first = Train(cuda_, job);
    ASSERT_EQ(first.losses.size(), static_cast<size_t>(job.steps));
    for (const TinyJob& variation : variations) {
      const Numbers numbers = Train(cuda_, variation);
      EXPECT_EQ(numbers.losses, first.losses) << Describe(variation);
      EXPECT_EQ(numbers.validation_loss, first.validation_loss) << Describe(variation);
      EXPECT_EQ(numbers.weights_sha256, first.weights_sha256) << Describe(variation);
    }
    TinyJob alone = job;
    alone.stages = 1;
    const Numbers cpu = Train(cpu_, alone);
    ExpectNear(first, cpu, bound, Describe(job));
    EXPECT_NE(first.weights_sha256, cpu.weights_sha256) << "was that a CUDA device?";
  }

  static TinyJob Varied(TinyJob job, int stages, const char* schedule, const char* recompute,
                        const char* transport = "auto") {
    job.stages = stages;
    job.schedule = schedule;
    job.recompute = recompute;
    job.transport = transport;
    return job;
  }

  static TestCluster *cuda_, *cpu_;
};

TestCluster* CudaWorkers::cuda_ = nullptr;
TestCluster* CudaWorkers::cpu_ = nullptr;

TEST_F(CudaWorkers, TrainATiedGptWithDropoutToTheSameBitsForEveryPlan) {
  const TinyJob job = Varied(Gpt2(), 1, "gpipe", "never");
  ExpectIdentity(job,
                 {Varied(job, 2, "1f1b", "always", "grpc"), Varied(job, 2, "gpipe", "never", "shm"),
                  Varied(job, 4, "gpipe", "always")},
                 1e-5);
}

TEST_F(CudaWorkers, TrainALlamaToTheSameBitsForEveryPlan) {
  const TinyJob job = Varied(Llama(), 2, "gpipe", "always");
  ExpectIdentity(job, {Varied(job, 1, "1f1b", "always"), Varied(job, 4, "1f1b", "never")}, 1e-5);
}

TEST_F(CudaWorkers, TrainInBf16ToTheSameBitsForEveryPlan) {
  const TinyJob gpt2 = Varied(Bf16(Gpt2()), 1, "gpipe", "always");
  ExpectIdentity(gpt2, {Varied(gpt2, 4, "1f1b", "never")}, 1e-3);
  const TinyJob llama = Varied(Bf16(Llama()), 2, "1f1b", "always");
  ExpectIdentity(llama, {Varied(llama, 1, "gpipe", "never")}, 1e-3);
}

TEST_F(CudaWorkers, AreShownWithTheirDevicesAndSaySoInPlans) {
  const ClientRun workers = cuda_->Run({"workers"});
  EXPECT_THAT(workers.out, HasSubstr("Difference Engine 0 (cuda 9.0, 1.0 GiB free)"));
  const std::string path = cuda_->WriteFile("plan.yaml", JobFileText(Gpt2()));
  const ClientRun plan = cuda_->Run({"plan", path});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("w0 (cuda)"));
}

TEST_F(CudaWorkers, TakeTheMemoryThatWasPlannedForThem) {
  const std::string id = Ended(cuda_, Varied(Gpt2(), 2, "gpipe", "always"));
  const nlohmann::json job = cuda_->Describe(id);
  ASSERT_EQ(job.value("state", ""), "done") << job.value("message", "");
  for (size_t k = 0; k < 2; ++k) {
    const nlohmann::json &planned = job.at("plan").at("stage").at(k).at("memory"),
                         &measured = job.at("peak_memory").at(k);
    for (const char* kind : {"weights", "gradients", "optimizer", "stash", "workspace"}) {
      EXPECT_EQ(measured.at(kind), planned.at(kind)) << kind << " of stage " << k;
    }
    EXPECT_LE(measured.at("link"), planned.at("link"));
  }
  EXPECT_THAT(cuda_->Run({"logs", id}).out, HasSubstr("; pinned host memory "));
}

// In bf16, too, where activations take half of it and weights a copy.
TEST_F(CudaWorkers, TakeTheMemoryThatWasPlannedForThemInBf16) {
  for (const TinyJob& kind : {Bf16(Gpt2()), Bf16(Llama())}) {
    for (const int stages : {1, 2}) {
      const std::string id = Ended(cuda_, Varied(kind, stages, "1f1b", "never"));
      const nlohmann::json job = cuda_->Describe(id);
      ASSERT_EQ(job.value("state", ""), "done") << job.value("message", "");
      for (int k = 0; k < stages; ++k) {
        for (const char* part : {"weights", "gradients", "optimizer", "stash", "workspace"}) {
          EXPECT_EQ(job.at("peak_memory").at(k).at(part),
                    job.at("plan").at("stage").at(k).at("memory").at(part))
              << part << " of stage " << k << " of " << Describe(kind);
        }
      }
    }
  }
}

// What travels is in bfloat16 already: half the bytes, not a bit of the numbers.
TEST_F(CudaWorkers, InBf16SendHalfTheBytesWithTheSameNumbersWhereAsked) {
  const TinyJob job = Varied(Bf16(Gpt2()), 2, "1f1b", "always");
  const Numbers in_fp32 = Train(cuda_, job);
  const Numbers in_bf16 =
      Train(cuda_, Varied(job, 2, "1f1b", "always", "auto\n  boundary_dtype: bf16"));
  EXPECT_EQ(in_bf16.losses, in_fp32.losses);
  EXPECT_EQ(in_bf16.validation_loss, in_fp32.validation_loss);
  EXPECT_EQ(in_bf16.weights_sha256, in_fp32.weights_sha256);
}

TEST_F(CudaWorkers, ReplayAndGenerate) {
  TinyJob job = Varied(Gpt2(), 2, "1f1b", "always");
  job.name = "spoken";
  const std::string id = Ended(cuda_, job);
  const ClientRun verified = cuda_->Run({"verify", id, "--steps", "1"});
  EXPECT_EQ(verified.exit_code, 0) << verified.out << verified.err;
  const ClientRun said = cuda_->Run({"generate", id, "--prompt", "The river ", "--max-tokens", "3",
                                     "--temperature", "0"});
  EXPECT_EQ(said.exit_code, 0) << said.err;
  EXPECT_GE(said.out.size(), 3u);
}

// Two stages say what one says, from the same weights.
TEST_F(CudaWorkers, GenerateInBf16) {
  for (const TinyJob& kind : {Bf16(Gpt2()), Bf16(Llama())}) {
    std::vector<std::string> said;
    for (const int stages : {1, 2}) {
      const std::string id = Ended(cuda_, Varied(kind, stages, "1f1b", "always"));
      const ClientRun run = cuda_->Run(
          {"generate", id, "--prompt", "The river ", "--max-tokens", "4", "--temperature", "0"});
      EXPECT_EQ(run.exit_code, 0) << Describe(kind) << " K=" << stages << ": " << run.err;
      said.push_back(run.out);
    }
    EXPECT_GE(said[0].size(), 4u);
    EXPECT_EQ(said[0], said[1]) << Describe(kind);
  }
}

// A device of its own way to multiply: the job says so, and it trains.
TEST_F(CudaWorkers, TrainByTf32WhereAskedAndSaySoInPlans) {
  TinyJob job = Varied(Gpt2(), 2, "1f1b", "always");
  job.more_training += "  tf32: true\n";
  const ClientRun plan = cuda_->Run({"plan", cuda_->WriteFile("tf32.yaml", JobFileText(job))});
  EXPECT_THAT(plan.out, HasSubstr("precision fp32 (TF32 on CUDA devices)"));
  EXPECT_EQ(Train(cuda_, job).losses.size(), 2u);
  job.stages = 1;
  const ClientRun refused = cpu_->Run({"plan", cpu_->WriteFile("tf32.yaml", JobFileText(job))});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.err, HasSubstr("training.tf32 is of CUDA devices, and no worker has one"));
}

// One pipeline, both kinds, in either order: what travels is the same on each edge.
TEST(MixedWorkers, TrainOnePipeline) {
  for (const bool cuda_first : {true, false}) {
    const auto started =
        TestCluster::Start({cuda_first ? CudaWorker("a") : CpuWorker("a"),
                            cuda_first ? CpuWorker("b") : CudaWorker("b"), CpuWorker("c")});
    ASSERT_TRUE(started.ok()) << started.status();
    TestCluster& cluster = **started;
    cluster.WriteFile("tiny.txt", TinyText());
    Numbers cpu;
    for (TinyJob job : {Gpt2(), Bf16(Llama())}) {
      job.stages = 3;
      job.transport = cuda_first ? "grpc" : "auto";
      const Numbers mixed = Train(&cluster, job);
      ASSERT_EQ(mixed.losses.size(), 2u);
      EXPECT_GT(mixed.losses.front(), 0);
    }
  }
}

// A worker that is killed, and one whose device is lost: one sentence that says who and what.
TEST(CudaWorkersThatFail, AreNamed) {
  // The device answers while the worker starts and for some micro-batches, then no more.
  const auto started =
      TestCluster::Start({CudaWorker("w0"), CudaWorker("w1", "fail=cudaStreamQuery@400 error=700")});
  ASSERT_TRUE(started.ok()) << started.status();
  TestCluster& cluster = **started;
  cluster.WriteFile("tiny.txt", TinyText());
  TinyJob job = Gpt2();
  job.steps = 1000;
  job.eval_every = 0;
  const std::string lost = Ended(&cluster, job);
  const std::string message = cluster.Describe(lost).value("message", "");
  EXPECT_THAT(message, HasSubstr("worker w1, stage "));
  EXPECT_THAT(message, HasSubstr(", step "));
  EXPECT_THAT(message, HasSubstr("cudaErrorIllegalAddress: an illegal memory access was "
                                 "encountered; the device is lost to this process"));
  EXPECT_EQ(cluster.process("w1").Wait(absl::Now() + absl::Seconds(10)).value_or(-1), 6)
      << cluster.Log("w1");

  // A supervisor starts it again, and it serves the next job, until it is killed.
  ASSERT_TRUE(cluster.AddWorker(CudaWorker("w1")).ok());
  ASSERT_TRUE(cluster.WaitForFreeWorkers(2).ok());
  const auto next = cluster.Submit(JobFileText(job));
  ASSERT_TRUE(next.ok()) << next.status();
  ASSERT_TRUE(cluster.WaitForStep(*next, 1).ok());
  cluster.Kill("w1");
  const auto ended = cluster.WaitForEnd(*next, absl::Seconds(10));
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_EQ(ended->state(), v1::JOB_STATE_FAILED);
  EXPECT_THAT(ended->message(), HasSubstr("w1"));
  EXPECT_TRUE(cluster.WaitForFreeWorkers(1).ok()) << "the other one is free";
}

// What a device cannot do is refused before it is tried, and the worker serves the next job.
TEST(CudaWorkersThatRefuse, SayWhyAndStayUsable) {
  const auto started =
      TestCluster::Start({CudaWorker("w0", "capability=7 memory=1100000000")});
  ASSERT_TRUE(started.ok()) << started.status();
  TestCluster& cluster = **started;
  cluster.WriteFile("tiny.txt", TinyText());
  TinyJob job = Gpt2();
  job.stages = 1;
  const auto refusal = [&](const TinyJob& refused) {
    const std::string path = cluster.WriteFile("refused.yaml", JobFileText(refused));
    const ClientRun plan = cluster.Run({"plan", path});
    EXPECT_NE(plan.exit_code, 0);
    return plan.err;
  };
  TinyJob bf16 = job;
  bf16.more_training += "  precision: bf16\n";
  EXPECT_THAT(refusal(bf16), HasSubstr("whose device multiplies bf16"));
  TinyJob wide = job;
  wide.width = 256;
  wide.heads = 1;
  EXPECT_THAT(refusal(wide), HasSubstr("attention heads of 256 need 1 worker that compute on a CPU"));
  TinyJob large = job;
  large.width = 4096;
  large.layers = 30;
  large.heads = 64;
  EXPECT_THAT(refusal(large), HasSubstr("does not fit"));
  EXPECT_EQ(Train(&cluster, job).losses.size(), 2u);
}

// Flags and machines on which there is nothing to compute on.
TEST(CudaWorkersThatDoNotStart, SayWhy) {
  const auto started = TestCluster::Start(std::vector<WorkerOptions>{});
  ASSERT_TRUE(started.ok()) << started.status();
  TestCluster& cluster = **started;
  const auto end = [&](WorkerOptions options, int expected) {
    EXPECT_TRUE(cluster.AddWorker(options).ok());
    EXPECT_EQ(cluster.process(options.name).Wait(absl::Now() + absl::Seconds(20)).value_or(-1),
              expected)
        << cluster.Log(options.name);
    return cluster.Log(options.name);
  };
  WorkerOptions missing = CudaWorker("missing");
  missing.more_flags = {"--device", "cuda:3"};
  EXPECT_THAT(end(missing, 1), HasSubstr("device 'cuda:3': there is no CUDA device 3, only 1"));
  WorkerOptions old = CudaWorker("old");
  old.prefix.push_back("FAKE_CUDA_VERSION=12040");
  EXPECT_THAT(end(old, 1), HasSubstr("the driver is too old: it supports CUDA 12.4"));
  WorkerOptions greedy = CudaWorker("greedy", "memory=1000000000");
  EXPECT_THAT(end(greedy, 2), HasSubstr("--memory-limit: 1.0 GiB, but only 954 MiB of "
                                        "Difference Engine 0 are free"));
  WorkerOptions dead = CudaWorker("dead", "fail=cudaStreamQuery@1 error=700");
  EXPECT_THAT(end(dead, 1), HasSubstr("cannot be computed on: a kernel: cudaErrorIllegalAddress"));

  WorkerOptions probe = CudaWorker("probe");
  probe.more_flags = {"--device", "auto", "--probe"};
  const std::string found = end(probe, 0);
  EXPECT_THAT(found, HasSubstr("cuda:0: Difference Engine 0, 3072 MiB, compute capability 9.0"));
  EXPECT_THAT(found, HasSubstr("--device auto computes on: cuda\n"));
}

}  // namespace
}  // namespace headrace
