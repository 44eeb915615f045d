// For tests: worker processes whose CUDA device is emulated, and small jobs for them.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/cluster/test_cluster.h"
#include "tests/cluster/tiny_job.h"

namespace headrace {

// A worker on an emulated device; `emulated` is EMULATED_CUDA (emulated_module.cc).
inline WorkerOptions CudaWorker(const std::string& name, const std::string& emulated = "") {
  WorkerOptions options;
  options.name = name;
  options.prefix = {
      "/usr/bin/env", absl::StrCat("LD_LIBRARY_PATH=", HEADRACE_EMULATED_CUDA_DIR),
      absl::StrCat("HEADRACE_CUDA_MODULE=", HEADRACE_EMULATED_CUDA_DIR, "/libheadrace_cuda.so"),
      absl::StrCat("EMULATED_CUDA=", emulated)};
  options.more_flags = {"--device", "cuda"};
  return options;
}

inline WorkerOptions CpuWorker(const std::string& name) {
  WorkerOptions options;
  options.name = name;
  options.more_flags = {"--device", "cpu"};
  return options;
}

inline TinyJob Gpt2() {
  TinyJob job;
  job.steps = 2;
  job.batch = 3;
  job.micro_batches = 2;
  job.length = 9;
  job.eval_every = 2;
  job.more_training = "  eval_batches: 1\n";
  return job;
}

inline TinyJob Llama() {
  TinyJob job = Gpt2();
  job.family = "llama";
  job.tied = false;
  return job;
}

struct Numbers {
  std::vector<double> losses;
  double validation_loss = 0;
  std::string weights_sha256;
};

inline std::string Describe(const TinyJob& job) {
  return absl::StrCat(job.family, " K=", job.stages, " ", job.schedule, " recompute ",
                      job.recompute, " ", job.transport, job.more_training);
}

inline std::string Ended(TestCluster* cluster, const TinyJob& job) {
  const auto id = cluster->Submit(JobFileText(job));
  if (!id.ok()) {
    ADD_FAILURE() << Describe(job) << ": " << id.status();
    return "";
  }
  const auto ended = cluster->WaitForEnd(*id);
  EXPECT_TRUE(ended.ok()) << Describe(job) << ": " << ended.status();
  return *id;
}

inline Numbers Train(TestCluster* cluster, const TinyJob& job) {
  Numbers numbers;
  const std::string id = Ended(cluster, job);
  const nlohmann::json described = cluster->Describe(id);
  EXPECT_EQ(described.value("state", ""), "done")
      << Describe(job) << described.value("message", "");
  if (described.value("state", "") != "done") return numbers;
  for (const nlohmann::json& step : described.at("steps")) {
    numbers.losses.push_back(step.at("loss"));
    if (step.contains("validation_loss")) numbers.validation_loss = step.at("validation_loss");
  }
  numbers.weights_sha256 = described.at("weights_sha256");
  return numbers;
}

}  // namespace headrace
