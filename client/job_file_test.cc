#include "client/job_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace headrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kGood[] = R"(name: tiny
model:
  family: gpt2
  vocab_size: 256
  n_layer: 2
  n_embd: 16
  n_head: 2
  n_positions: 32
data:
  text: text.txt
  tokenizer: byte
training:
  steps: 10
  batch_size: 8
  micro_batches: 4
  sequence_length: 16
  optimizer:
    kind: adamw
    learning_rate: 3e-4
    groups:
      - match: "*.bias"
pipeline:
  stages: 2
)";

struct BadCase {
  const char* name;
  std::vector<std::pair<std::string, std::string>> edits;  // replaced in kGood
  const char* start;  // what the message begins with: file, line, key
  const char* says;   // and holds
};

// The impossible combinations of the job file that every reader of it must refuse. Unknown keys,
// wrong types and what is no YAML at all are in job_yaml_test.cc.
std::vector<BadCase> BadCases() {
  return {
      {"M = 0",
       {{"micro_batches: 4", "micro_batches: 0"}},
       "dir/job.yaml:15: training.micro_batches: ",
       "expected"},
      {"M negative",
       {{"micro_batches: 4", "micro_batches: -3"}},
       "dir/job.yaml:15: training.micro_batches: ",
       "expected"},
      {"M > batch",
       {{"micro_batches: 4", "micro_batches: 9"}},
       "dir/job.yaml:15: training.micro_batches: ",
       "8"},
      {"width not divisible by heads", {{"n_head: 2", "n_head: 3"}}, "dir/job.yaml:", "n_head"},
      {"sequence longer than context",
       {{"sequence_length: 16", "sequence_length: 33"}},
       "dir/job.yaml:16: training.sequence_length: ",
       "32"},
      {"10^12 layers",
       {{"n_layer: 2", "n_layer: 1000000000000"}},
       "dir/job.yaml:5: model.n_layer: ",
       "expected"},
      {"more stages than layers",
       {{"stages: 2", "stages: 5"}},
       "dir/job.yaml:23: pipeline.stages: ",
       "4"},
      {"no data",
       {{"  text: text.txt\n  tokenizer: byte\n", "  seed: 1\n"}},
       "dir/job.yaml:9: data",
       "expected"},
      {"no steps", {{"  steps: 10\n", ""}}, "dir/job.yaml:12: training.steps: ", "expected"},
      {"no model", {{"  family: gpt2\n", ""}}, "dir/job.yaml:2: model.family: ", "expected"},
      {"a key of the other family",
       {{"n_head: 2", "n_head: 2\n  rope_theta: 10000"}},
       "dir/job.yaml:8: model.rope_theta: ",
       "gpt2"},
      {"no learning rate",
       {{"    learning_rate: 3e-4\n", ""}},
       "dir/job.yaml:17: training.optimizer.learning_rate: ",
       "expected"},
      {"negative learning rate",
       {{"3e-4", "-3e-4"}},
       "dir/job.yaml:19: training.optimizer.learning_rate: ",
       "expected"},
      {"a group that matches nothing",
       {{"*.bias", "*.wrong"}},
       "dir/job.yaml:21: training.optimizer.groups[0].match: \"*.wrong\" matches no parameter",
       "transformer.h.0."},
      {"NaN learning rate",
       {{"3e-4", ".nan"}},
       "dir/job.yaml:19: training.optimizer.learning_rate: ",
       "expected a finite number"},
      {"a bucket",
       {{"  stages: 2\n", "  stages: 2\ncheckpoint:\n  store: s3://bucket\n"}},
       "dir/job.yaml:25: checkpoint.store: \"s3://bucket\": buckets cannot be written to",
       "expected file:///FOLDER"},
      {"no checkpoint kept",
       {{"  stages: 2\n", "  stages: 2\ncheckpoint: {keep_last: 0}\n"}},
       "dir/job.yaml:24: checkpoint.keep_last: 0; expected",
       "from 1"},
      {"a factor that every loss passes",
       {{"  stages: 2\n", "  stages: 2\nrecovery:\n  on_nan: skip\n  spike_factor: 1\n"}},
       "dir/job.yaml:26: recovery.spike_factor: 1; expected",
       "a number above 1"},
  };
}

TEST(JobFile, AcceptsAGoodJob) {
  const auto file = ParseJobFile(kGood, "dir/job.yaml");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->spec.training().micro_batches(), 4);
  EXPECT_EQ(file->Resolve("text.txt"), "dir/text.txt");
  EXPECT_EQ(file->Resolve("/abs/text.txt"), "/abs/text.txt");
}

TEST(JobFile, RefusesImpossibleJobsWithFileLineKeyAndWhatWasExpected) {
  for (const BadCase& c : BadCases()) {
    std::string text = kGood;
    for (const auto& [from, to] : c.edits) {
      ASSERT_THAT(text, HasSubstr(from)) << c.name;
      text = absl::StrReplaceAll(text, {{from, to}});
    }
    const auto file = ParseJobFile(text, "dir/job.yaml");
    ASSERT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument) << c.name;
    EXPECT_THAT(std::string(file.status().message()), AllOf(StartsWith(c.start), HasSubstr(c.says)))
        << c.name;
  }
}

TEST(JobFile, LocatesTheNearestSectionOfAKeyThatIsNotThere) {
  const auto file = ParseJobFile(kGood, "job.yaml");
  ASSERT_TRUE(file.ok()) << file.status();
  const auto at = [&](const char* message) {
    return std::string(file->Locate(absl::NotFoundError(message)).message());
  };
  EXPECT_EQ(at("training.optimizer.groups[0].weight_decay: bad"),
            "job.yaml:21: training.optimizer.groups[0].weight_decay: bad");
  EXPECT_EQ(at("training.learning_rate.kind: bad"),
            "job.yaml:12: training.learning_rate.kind: bad");
  EXPECT_EQ(at("no key at all"), "job.yaml:1: no key at all");
  EXPECT_TRUE(file->Locate(absl::OkStatus()).ok());
}

TEST(JobFile, AcceptsEveryExample) {
  int examples = 0;
  for (const auto& entry : std::filesystem::directory_iterator("examples")) {
    if (entry.path().extension() != ".yaml") continue;
    const auto file = ReadJobFile(entry.path().string());
    EXPECT_TRUE(file.ok()) << file.status();
    if (file.ok()) {
      EXPECT_EQ(file->spec.name(), entry.path().stem().string());
    }
    ++examples;
  }
  EXPECT_GE(examples, 6);
}

TEST(JobFile, SaysWhyAFileCannotBeRead) {
  const std::string dir = ::testing::TempDir() + "/job_file_test";
  std::filesystem::create_directories(dir);
  const auto message = [](const std::string& path) {
    const auto status = ReadJobFile(path).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message(dir + "/none.yaml"), HasSubstr("none.yaml: no such job file"));
  EXPECT_THAT(message(dir), HasSubstr("not a file"));
  EXPECT_THAT(message("/dev/zero"), HasSubstr("not a file"));
  std::ofstream(dir + "/huge.yaml") << std::string(kMaxJobFileBytes + 1, '#');
  EXPECT_THAT(message(dir + "/huge.yaml"), HasSubstr("expected a job file of at most 1048576"));
}

}  // namespace
}  // namespace headrace
