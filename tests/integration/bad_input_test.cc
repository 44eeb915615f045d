// Whatever a user, a peer or a stranger on the network gets wrong ends in a sentence and an exit
// code.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/cluster/test_cluster.h"
#include "tests/cluster/tiny_job.h"

namespace headrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

class BadInputTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto cluster = TestCluster::Start(2);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = cluster->release();
    cluster_->WriteFile("tiny.txt", TinyText());
    cluster_->WriteFile("empty.txt", "");
    cluster_->WriteFile("short.txt", "too short");
  }
  static void TearDownTestSuite() {
    delete cluster_;
    cluster_ = nullptr;
  }

  static size_t NumJobs() {
    const ClientRun run = cluster_->Run({"list", "-o", "json"});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return Json::parse(run.out).size();
  }

  static TestCluster* cluster_;
};

TestCluster* BadInputTest::cluster_ = nullptr;

TEST_F(BadInputTest, NoCoordinatorIsUnreachableAndSaysWhereItLooked) {
  const ClientRun run = cluster_->Run({"list", "--coordinator", "127.0.0.1:1"}, absl::Seconds(20));
  EXPECT_EQ(run.exit_code, 4);
  EXPECT_THAT(run.err, HasSubstr("127.0.0.1:1"));
  EXPECT_EQ(run.out, "");
}

TEST_F(BadInputTest, AWrongAddressIsAUsageError) {
  const ClientRun run = cluster_->Run({"list", "--coordinator", "nowhere"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, AllOf(HasSubstr("nowhere"), HasSubstr("host:port")));
}

TEST_F(BadInputTest, AnUnknownJobIsNotFoundByEveryCommand) {
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"describe"},
                                             {"watch"},
                                             {"logs"},
                                             {"cancel"},
                                             {"verify"},
                                             {"generate", "--prompt", "x"}}) {
    std::vector<std::string> arguments = command;
    arguments.insert(arguments.begin() + 1, "j999");
    const ClientRun run = cluster_->Run(arguments);
    EXPECT_EQ(run.exit_code, 3) << command[0] << ": " << run.err;
    EXPECT_THAT(run.err, HasSubstr("j999")) << command[0];
  }
}

TEST_F(BadInputTest, AnUnknownCommandOrFlagIsAUsageError) {
  EXPECT_EQ(cluster_->Run({"trian"}).exit_code, 2);
  EXPECT_EQ(cluster_->Run({"list", "--fast"}).exit_code, 2);
  EXPECT_EQ(cluster_->Run({}).exit_code, 2);
  EXPECT_EQ(cluster_->Run({"submit", "none.yaml"}).exit_code, 2);
}

TEST_F(BadInputTest, ABadJobFileNamesFileLineAndKeyAndSubmitsNothing) {
  const std::string good = JobFileText(TinyJob());
  struct Case {
    const char* what;
    std::string text;
    const char* says;
  };
  const auto with = [&](const char* old_text, const char* new_text) {
    EXPECT_THAT(good, HasSubstr(old_text));
    return absl::StrReplaceAll(good, {{old_text, new_text}});
  };
  const std::vector<Case> cases = {
      {"empty", "", "empty"},
      {"not YAML", "name: [1, 2", "bad.yaml:"},
      {"a list", "- 1\n- 2\n", "bad.yaml:1"},
      {"unknown key", with("  n_layer: 2", "  n_layers: 2"), "n_layers"},
      {"key of the other family", with("  n_embd: 32", "  hidden_size: 32"), "hidden_size"},
      {"wrong type", with("n_layer: 2", "n_layer: two"), "model.n_layer"},
      {"missing value", with("n_layer: 2", "n_layer:"), "model.n_layer"},
      {"M = 0", with("micro_batches: 3", "micro_batches: 0"), "training.micro_batches"},
      {"M > batch", with("micro_batches: 3", "micro_batches: 7"), "training.micro_batches"},
      {"width not divisible by heads", with("n_head: 2", "n_head: 3"), "n_head"},
      {"sequence longer than context", with("sequence_length: 12", "sequence_length: 17"),
       "training.sequence_length"},
      {"missing text", with("text: tiny.txt", "text: none.txt"), "none.txt"},
      {"empty text", with("text: tiny.txt", "text: empty.txt"), "empty"},
      {"text too short", with("text: tiny.txt", "text: short.txt"), "9 tokens"},
      {"token beyond the vocabulary", with("vocab_size: 256", "vocab_size: 90"), "vocab_size"},
      {"NaN learning rate", with("learning_rate: 0.003", "learning_rate: .nan"),
       "training.optimizer.learning_rate"},
      {"10^12 layers", with("n_layer: 2", "n_layer: 1000000000000"), "model.n_layer"},
      {"negative steps", with("steps: 4", "steps: -4"), "training.steps"},
      {"unknown schedule", with("schedule: gpipe", "schedule: pipegp"), "pipeline.schedule"},
      {"a number beyond 64 bits", with("seed: 11", "seed: 99999999999999999999999"),
       "training.seed"},
  };
  const size_t before = NumJobs();
  for (const Case& c : cases) {
    cluster_->WriteFile("bad.yaml", c.text);
    const ClientRun run = cluster_->Run({"submit", "bad.yaml"});
    EXPECT_EQ(run.exit_code, 2) << c.what << ": " << run.err;
    EXPECT_THAT(run.err, AllOf(HasSubstr("bad.yaml"), HasSubstr(c.says))) << c.what;
    EXPECT_EQ(run.out, "") << c.what;
  }
  EXPECT_EQ(NumJobs(), before);
}

TEST_F(BadInputTest, ASecondWorkerOfTheSameNameIsTurnedAwayAndTheFirstServesOn) {
  ChildProcess::Options options;
  options.arguments = {absl::StrCat(HEADRACE_BIN_DIR, "/headrace-worker"),
                       "--coordinator",
                       cluster_->address(),
                       "--name",
                       "w0",
                       "--listen",
                       "127.0.0.1:0",
                       "--data-dir",
                       cluster_->dir() + "/second",
                       "--die-with-parent"};
  options.stdout_path = options.stderr_path = cluster_->dir() + "/second.log";
  auto second = ChildProcess::Start(options);
  ASSERT_TRUE(second.ok()) << second.status();
  const auto code = (*second)->Wait(absl::Now() + absl::Seconds(20));
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, 1);
  EXPECT_THAT(cluster_->Log("second"), HasSubstr("w0"));
  EXPECT_TRUE(cluster_->WaitForFreeWorkers(2).ok());
}

TEST_F(BadInputTest, ABadWorkerFlagIsAUsageError) {
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
           {"--coordinator", "nowhere"},
           {"--coordinator", "127.0.0.1:1", "--memory-limit", "lots"},
           {"--coordinator", "127.0.0.1:1", "--device", "abacus"},
           {"--coordinator", "127.0.0.1:1", "--device", "cuda:first"},
           {"--coordinator", "127.0.0.1:1", "--name", "a b"},
           {}}) {
    ChildProcess::Options options;
    options.arguments = {absl::StrCat(HEADRACE_BIN_DIR, "/headrace-worker")};
    options.arguments.insert(options.arguments.end(), flags.begin(), flags.end());
    options.stdout_path = options.stderr_path = cluster_->dir() + "/flags.log";
    auto worker = ChildProcess::Start(options);
    ASSERT_TRUE(worker.ok()) << worker.status();
    EXPECT_EQ((*worker)->Wait(absl::Now() + absl::Seconds(20)).value_or(-1), 2)
        << cluster_->Log("flags");
  }
}

// On a machine without a driver or device, and as yet on any other.
TEST_F(BadInputTest, ACudaDeviceIsRefusedInTheWordsOfTheProbe) {
  const auto run = [](const std::vector<std::string>& flags, int expected) {
    ChildProcess::Options options;
    options.arguments = {absl::StrCat(HEADRACE_BIN_DIR, "/headrace-worker")};
    options.arguments.insert(options.arguments.end(), flags.begin(), flags.end());
    options.stdout_path = options.stderr_path = cluster_->dir() + "/probe.log";
    auto worker = ChildProcess::Start(options);
    EXPECT_TRUE(worker.ok()) << worker.status();
    EXPECT_EQ((*worker)->Wait(absl::Now() + absl::Seconds(20)).value_or(-1), expected)
        << cluster_->Log("probe");
    return cluster_->Log("probe");
  };
  const std::string probe = run({"--probe"}, 0);
  EXPECT_THAT(probe, HasSubstr("\ncuda:"));
  const std::string refusal = run({"--coordinator", "127.0.0.1:1", "--device", "cuda", "--data-dir",
                                   cluster_->dir() + "/probe"}, 1);
  EXPECT_THAT(refusal, HasSubstr("device 'cuda': "));
  const size_t begin = probe.find("computes on: cpu (");
  ASSERT_NE(begin, std::string::npos) << probe;
  const std::string why = probe.substr(begin + 18, probe.rfind(')') - begin - 18);
  EXPECT_THAT(refusal, HasSubstr(why));
}

TEST_F(BadInputTest, ALossThatIsNoNumberStopsTheJobAndKeepsTheLastGoodWeights) {
  TinyJob job;
  job.name = "explodes";
  job.steps = 200;
  job.clip_norm = 0;
  std::string text = JobFileText(job);
  // Plain gradient descent at a rate that makes weights grow until gradients leave fp32.
  text = absl::StrReplaceAll(
      text, {{"kind: adamw", "kind: sgd"}, {"learning_rate: 0.003", "learning_rate: 1e8"}});
  const auto id = cluster_->Submit(text);
  ASSERT_TRUE(id.ok()) << id.status();
  const auto ended = cluster_->WaitForEnd(*id);
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_EQ(ended->state(), v1::JOB_STATE_FAILED);
  const Json described = cluster_->Describe(*id);
  const int64_t weights_step = described.at("weights_step");
  EXPECT_GE(weights_step, 1);
  EXPECT_LT(weights_step, 200);
  EXPECT_THAT(described.at("message").get<std::string>(),
              AllOf(HasSubstr(absl::StrCat("step ", weights_step + 1)),
                    testing::ContainsRegex("(loss|gradient).*(NaN|infinite)")));
  EXPECT_EQ(described.at("weights_sha256").get<std::string>().size(), 64u);
  EXPECT_EQ(cluster_->Run({"watch", *id}).exit_code, 1);
  ASSERT_TRUE(cluster_->WaitForFreeWorkers(2).ok());
  const ClientRun generated =
      cluster_->Run({"generate", *id, "--prompt", "The", "-n", "4", "-o", "json"});
  EXPECT_EQ(generated.exit_code, 0) << generated.err;
}

// Bytes no protocol of ours begins with, sent to `address`.
void SendNoise(const std::string& address, unsigned seed) {
  int port = 0;
  ASSERT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(static_cast<uint16_t>(port));
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
  std::mt19937 random(seed);
  // Half of them begin as HTTP/2 does, and go wrong after.
  std::string noise = seed % 2 == 0 ? "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" : "";
  for (int i = 0; i < 20'000; ++i) noise += static_cast<char>(random());
  // The other side may well hang up in the middle.
  size_t sent = 0;
  while (sent < noise.size()) {
    const ssize_t n = send(fd, noise.data() + sent, noise.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) break;
    sent += static_cast<size_t>(n);
  }
  close(fd);
}

TEST_F(BadInputTest, NoiseOnThePortsDisturbsNoJob) {
  TinyJob job;
  job.name = "quiet";
  job.steps = 20;
  const auto quiet = cluster_->Submit(JobFileText(job));
  ASSERT_TRUE(quiet.ok()) << quiet.status();
  ASSERT_TRUE(cluster_->WaitForEnd(*quiet).ok());
  const ClientRun workers = cluster_->Run({"workers", "-o", "json"});
  ASSERT_EQ(workers.exit_code, 0) << workers.err;
  std::vector<std::string> addresses = {cluster_->address()};
  for (const Json& worker : Json::parse(workers.out)) addresses.push_back(worker.at("address"));
  ASSERT_EQ(addresses.size(), 3u);
  job.name = "noisy";
  const auto noisy = cluster_->Submit(JobFileText(job));
  ASSERT_TRUE(noisy.ok()) << noisy.status();
  for (unsigned seed = 0; seed < 30; ++seed) SendNoise(addresses[seed % 3], seed);
  const auto ended = cluster_->WaitForEnd(*noisy);
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_EQ(ended->state(), v1::JOB_STATE_DONE) << Standing(*ended);
  EXPECT_EQ(cluster_->Describe(*noisy).at("weights_sha256"),
            cluster_->Describe(*quiet).at("weights_sha256"));
}

// A worker with little memory refuses what does not fit before anything is allocated.
TEST(RefusedPlanTest, SaysWhatLacksAndWhatWouldHelp) {
  std::vector<WorkerOptions> workers(2);
  for (int i = 0; i < 2; ++i) {
    workers[static_cast<size_t>(i)].name = absl::StrCat("small", i);
    workers[static_cast<size_t>(i)].memory_limit = "6MiB";
  }
  auto cluster = TestCluster::Start(workers);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  (*cluster)->WriteFile("tiny.txt", TinyText());
  TinyJob job;
  job.layers = 4;
  job.width = 128;
  (*cluster)->WriteFile("wide.yaml", JobFileText(job));
  const ClientRun run = (*cluster)->Run({"submit", "wide.yaml"});
  EXPECT_EQ(run.exit_code, 5) << run.err;
  EXPECT_THAT(run.err, testing::ContainsRegex("stage [01].*[KM]iB"));
  EXPECT_THAT(run.err, testing::ContainsRegex("It would fit with [0-9]+ workers"));
  EXPECT_EQ((*cluster)->Run({"list", "-o", "json"}).out.find("wide"), std::string::npos);
}

}  // namespace
}  // namespace headrace
