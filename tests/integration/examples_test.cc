// Every job file in examples/ runs, as a user runs it. Long ones run for a few steps.
#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "common/file.h"
#include "tests/cluster/child_process.h"
#include "tests/cluster/test_cluster.h"
#include "tests/temp_dir.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostSteps = 10;

std::vector<std::string> Examples() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator("examples")) {
    if (entry.path().extension() == ".yaml") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// The number that stands after `key` in a job file, 0 without it.
int64_t NumberOf(const std::string& text, const std::string& key) {
  std::smatch match;
  int64_t number = 0;
  if (std::regex_search(text, match, std::regex("\n +" + key + ": ([0-9]+)"))) {
    EXPECT_TRUE(absl::SimpleAtoi(match[1].str(), &number));
  }
  return number;
}

// "$01": "$1" before a digit would be another group.
std::string WithNumber(const std::string& text, const std::string& key, const std::string& number) {
  return std::regex_replace(text, std::regex("(\n +" + key + ": )[0-9]+"), "$01" + number);
}

std::string Shortened(const std::string& text) {
  if (NumberOf(text, "steps") <= kMostSteps) return text;
  return WithNumber(WithNumber(WithNumber(text, "steps", "4"), "warmup_steps", "2"), "eval_every",
                    "4");
}

class ExamplesTest : public testing::TestWithParam<std::string> {
 protected:
  // Copies the examples beside made-up data, a text for the Bible among it.
  void SetUp() override {
    fs::copy("examples", dir_ / "examples", fs::copy_options::recursive);
    fs::remove_all(dir_ / "examples/data");
    ASSERT_EQ(Run({dir_ / "examples/make-data"}, "make-data", absl::Seconds(60)), 0);
    fs::copy_file(dir_ / "examples/data/text.txt", dir_ / "examples/data/kjv.txt");
  }

  int Run(std::vector<std::string> arguments, const std::string& label, absl::Duration time) {
    ChildProcess::Options options;
    options.arguments = std::move(arguments);
    options.environment = {"XDG_STATE_HOME=" + (dir_ / "state")};
    options.stdout_path = dir_ / (label + ".out");
    options.stderr_path = dir_ / (label + ".err");
    auto child = ChildProcess::Start(options);
    EXPECT_TRUE(child.ok()) << child.status();
    return (*child)->Wait(absl::Now() + time).value_or(-1);
  }

  TempDir dir_;
};

TEST_P(ExamplesTest, Runs) {
  const std::string path = dir_ / ("examples/" + GetParam() + ".yaml");
  const std::string text = Shortened(*ReadFile(path));
  ASSERT_TRUE(WriteFileAtomically(path, text).ok());
  const int64_t workers = std::max<int64_t>(2, NumberOf(text, "stages"));
  const int code = Run({std::string(HEADRACE_BIN_DIR) + "/headrace", "run", path, "--workers",
                        std::to_string(workers), "-o", "json"},
                       "run", absl::Seconds(90));
  const std::string errors = ReadFile(dir_ / "run.err").value_or("");
  ASSERT_EQ(code, 0) << errors;
  const auto job = nlohmann::json::parse(*ReadFile(dir_ / "run.out"), nullptr, false);
  ASSERT_TRUE(job.is_object()) << errors;
  EXPECT_EQ(job.at("state"), "done");
  EXPECT_EQ(job.at("steps").size(), static_cast<size_t>(NumberOf(text, "steps")));
  EXPECT_EQ(job.at("weights_sha256").get<std::string>().size(), 64u);
}

INSTANTIATE_TEST_SUITE_P(Files, ExamplesTest, testing::ValuesIn(Examples()), [](const auto& info) {
  return std::regex_replace(info.param, std::regex("[^a-zA-Z0-9]"), "_");
});

}  // namespace
}  // namespace headrace
