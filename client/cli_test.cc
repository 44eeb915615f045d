#include "client/cli.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli_fixture.h"
#include "client/commands/command.h"
#include "client/completion.h"
#include "client/render/json.h"
#include "plan/span.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST_F(CliTest, ExplainsWrongCommandLinesAndExitsWithTwo) {
  const struct {
    std::vector<std::string> arguments;
    const char* says;
  } kCases[] = {
      {{}, "headrace"},
      {{"sumbit"}, "unknown command 'sumbit', did you mean submit?; see headrace --help"},
      {{"list", "--frobnicate"}, "--frobnicate; see headrace list --help"},
      {{"describe"}, "job is required; see headrace describe --help"},
      {{"list", "-o", "xml"}, "xml"},
      {{"run", "x.yaml", "--workers", "0"}, "--workers"},
      {{"completion", "tcsh"}, "tcsh"},
      {{"run", "job.yaml", "--timeout", "soon"}, "--timeout soon: not a time"},
      {{"help", "me"}, "no command me"},
      {{"trace", "tiny"}, "say where to: -o FILE (a Chrome trace), --svg FILE or both"},
      {{"trace", "tiny", "-o", "-", "--svg", "-"}, "only one can go to stdout"},
      {{"-o", "json", "trace", "tiny", "--svg", "-"}, "takes -o FILE after the command"},
      {{"trace", "tiny", "-o", "-", "--steps", "5..3"}, "--steps 5..3: write a step or a range"},
      {{"trace", "tiny", "-o", "-", "--steps", "0"}, "--steps 0: write a step or a range"},
      {{"trace", "tiny", "-o", "-", "--steps", "1..2..3"}, "--steps 1..2..3: write"},
      {{"trace", "tiny", "-o", "-", "--steps", "all"}, "--steps all: write"},
      {{"list", "--coordinator", "nowhere"}, "--coordinator: "},
      {{"submit", "none.yaml"}, "none.yaml: no such job file"},
      {{"submit", "job.yaml", "--from", "tiny@"}, "--from tiny@: no checkpoint; write JOB or JOB@"},
      {{"submit", "job.yaml", "--from", "tiny@-3"}, "--from tiny@-3: no checkpoint"},
      {{"run", "job.yaml", "--from", "@3"}, "--from @3: no checkpoint"},
      {{"watch", "tiny", "--reconnect", "never"}, "--reconnect never: not a time; write 30, 90s"},
      {{"watch", "tiny", "--timeout", "0"}, "--timeout 0: not a time"},
      {{"drain"}, "worker is required; see headrace drain --help"},
      {{"checkpoint", "tiny", "--timeout", "soon"}, "--timeout soon: not a time"},
      {{"plan", dir_ + "/job.yaml", "--workers", "two"}, "--workers: 'two' is not COUNT:MEMORY"},
      {{"plan", dir_ + "/job.yaml", "--workers", "2:huge"}, "'2:huge' has no memory size above 0"},
      {{"plan", dir_ + "/job.yaml", "--workers", "0:1GiB"},
       "'0:1GiB' brings the workers out of the range 1 to"},
      {{"run", dir_ + "/job.yaml", "--workers", "1"},
       "job.yaml:5: pipeline.stages: 2; expected at most 1, a worker a stage (--workers)"},
      {{"run", dir_ + "/job.yaml", "--prompt", "\xff"}, "--prompt: byte 255; expected 0 to 127"},
  };
  for (const auto& c : kCases) {
    const Result result = Run(c.arguments);
    EXPECT_EQ(result.code, ExitCode::kUsage) << c.says;
    EXPECT_THAT(result.err, HasSubstr(c.says));
    EXPECT_EQ(result.out, "") << c.says;
  }
}

TEST_F(CliTest, PrintsHelpWithExitCodesAndVersion) {
  const Result help = Run({"--help"});
  EXPECT_EQ(help.code, ExitCode::kDone);
  EXPECT_THAT(help.out, HasSubstr("124 timed out, 130 interrupted."));
  EXPECT_THAT(Run({"help", "submit"}).out, HasSubstr("Usage: headrace submit"));
  EXPECT_EQ(Run({"submit", "--help"}).out, Run({"help", "submit"}).out);
  EXPECT_EQ(Run({"version"}).out, "headrace " HEADRACE_VERSION "\n");
  EXPECT_EQ(Run({"--version"}).out, "headrace " HEADRACE_VERSION "\n");
}

TEST_F(CliTest, SaysWhereItLookedWhenNoCoordinatorAnswers) {
  Result result = Run({"list", "--state-dir", dir_ + "/empty"});
  EXPECT_EQ(result.code, ExitCode::kUnreachable);
  EXPECT_THAT(result.err, HasSubstr("no coordinator known: give --coordinator"));
  result = Run({"list", "--coordinator", "unix:" + dir_ + "/none", "--state-dir", dir_ + "/empty"});
  EXPECT_EQ(result.code, ExitCode::kUnreachable);
  EXPECT_THAT(result.err,
              HasSubstr(absl::StrCat("no coordinator answers at unix:", dir_, "/none")));
  EXPECT_THAT(result.err, HasSubstr("headrace up"));
}

TEST_F(CliTest, FindsTheCoordinatorByVariableAndByStateDir) {
  setenv("HEADRACE_COORDINATOR", fake_->address().c_str(), 1);
  EXPECT_EQ(Run({"list", "--state-dir", dir_ + "/s"}).code, ExitCode::kDone);
  unsetenv("HEADRACE_COORDINATOR");
  std::ofstream(dir_ + "/s/coordinator.address") << fake_->address() << "\n";
  EXPECT_EQ(Run({"list", "--state-dir", dir_ + "/s"}).code, ExitCode::kDone);
}

TEST_F(CliTest, ListsAndDescribesForPeopleAndPrograms) {
  EXPECT_THAT(Ask({"list"}).out, HasSubstr("ID  NAME     STATE    STEP"));
  EXPECT_THAT(Ask({"list"}).out, HasSubstr("80 columns, to its end\n"));  // no terminal: not cut
  const Json list = Json::parse(Ask({"list", "-o", "json"}).out);
  EXPECT_EQ(list[0]["name"], "tiny");
  const Json job = Json::parse(Ask({"describe", "tiny", "-o", "json"}).out);
  EXPECT_EQ(job["id"], "j1");
  EXPECT_EQ(job["steps"][2]["loss"].get<double>(), 1.0 / 3);
  EXPECT_THAT(Ask({"describe", "j1", "-o", "yaml"}).out, StartsWith("id: j1\nname: tiny\n"));
  EXPECT_THAT(Ask({"describe", "j1"}).out, StartsWith("job        j1 tiny\nstate      done"));
  const Result unknown = Ask({"describe", "j9"});
  EXPECT_EQ(unknown.code, ExitCode::kNotFound);
  EXPECT_THAT(unknown.err, HasSubstr("no job j9"));
}

TEST_F(CliTest, WatchesToTheEndAndGoesOnWhereAStreamBroke) {
  fake_->BreakWatches(2);
  const Result result = Ask({"watch", "j1"});
  EXPECT_EQ(result.code, ExitCode::kDone) << result.err;
  EXPECT_THAT(result.err, HasSubstr("step 1/"));
  EXPECT_THAT(result.err, HasSubstr("step 3/"));
  EXPECT_THAT(result.out, StartsWith("job j1 (tiny) done"));
  const auto watches = fake_->watches();
  ASSERT_EQ(watches.size(), 3u);
  EXPECT_EQ(watches[1].after_step(), 1);
  EXPECT_EQ(watches[2].after_step(), 2);
}

TEST_F(CliTest, SaysWhyAJobFailedAndExitsWithOne) {
  const Result result = Ask({"watch", "broken"});
  EXPECT_EQ(result.code, ExitCode::kJobFailed);
  EXPECT_THAT(result.err, HasSubstr("job j2 (broken) failed: loss became NaN at step 3"));
}

TEST_F(CliTest, LeavesTheJobRunningWhenTheWatchIsInterruptedOrTimesOut) {
  Interrupt interrupt;
  std::thread presser([&] {
    while (fake_->watches().empty()) std::this_thread::yield();
    interrupt.Fire();
  });
  const Result result = Ask({"watch", "endless"}, &interrupt);
  presser.join();
  EXPECT_EQ(result.code, ExitCode::kInterrupted);
  EXPECT_THAT(result.err, HasSubstr("the job goes on, watch it with `headrace watch endless`"));
  const Result late = Ask({"watch", "endless", "--timeout", "100ms"});
  EXPECT_EQ(late.code, ExitCode::kTimedOut);
  EXPECT_THAT(late.err, HasSubstr("watch it with `headrace watch"));
  EXPECT_TRUE(fake_->cancelled().empty());
}

TEST_F(CliTest, SubmitsAndPrintsTheIdAlone) {
  const Result result = Ask({"submit", dir_ + "/job.yaml"});
  EXPECT_EQ(result.code, ExitCode::kDone) << result.err;
  EXPECT_EQ(result.out, "s1\n");
  ASSERT_EQ(fake_->submitted().size(), 1u);
  EXPECT_EQ(fake_->submitted()[0].dataset().token_bytes(), 1);
  EXPECT_EQ(fake_->submitted()[0].spec().training().steps(), 3);
  EXPECT_EQ(Ask({"submit", dir_ + "/job.yaml", "--watch"}).code, ExitCode::kDone);
  std::ofstream(dir_ + "/text.txt") << "";
  const Result empty = Ask({"submit", dir_ + "/job.yaml"});
  EXPECT_EQ(empty.code, ExitCode::kUsage);
  EXPECT_THAT(empty.err, HasSubstr("job.yaml:3: data.text: "));
  EXPECT_THAT(empty.err, HasSubstr("the file is empty"));
  EXPECT_EQ(fake_->submitted().size(), 2u);
}

TEST_F(CliTest, CancelsAndPassesOnRefusals) {
  EXPECT_EQ(Ask({"cancel", "endless"}).code, ExitCode::kDone);
  EXPECT_EQ(fake_->cancelled(), std::vector<std::string>{"endless"});
  EXPECT_EQ(Ask({"cancel", "j9"}).code, ExitCode::kNotFound);
  const Result refused = Ask({"plan", dir_ + "/job.yaml"});
  EXPECT_EQ(refused.code, ExitCode::kRefused);
  EXPECT_THAT(refused.err, HasSubstr("stage 0 lacks 5 bytes"));
}

TEST_F(CliTest, PlansWithoutACluster) {
  const Result text = Run({"plan", dir_ + "/job.yaml", "--workers", "2:1GiB"});
  EXPECT_EQ(text.code, ExitCode::kDone) << text.err;
  EXPECT_THAT(text.out, StartsWith("plan       2 stages, 2 micro-batches"));
  const Json json =
      Json::parse(Run({"plan", dir_ + "/job.yaml", "--workers", "2:1GiB", "-o", "json"}).out);
  EXPECT_EQ(json["stage"].size(), 2u);
  EXPECT_EQ(Run({"plan", dir_ + "/job.yaml", "--workers", "1:1GiB"}).code, ExitCode::kRefused);
  EXPECT_EQ(Run({"plan", dir_ + "/job.yaml", "--workers", "2:1KiB"}).code, ExitCode::kRefused);
}

TEST_F(CliTest, GeneratesTextFromAPrompt) {
  const Result text = Ask({"generate", "tiny", "--prompt", "abc"});
  EXPECT_EQ(text.code, ExitCode::kDone) << text.err;
  EXPECT_EQ(text.out, "abcABC\n");
  const Json json = Json::parse(Ask({"generate", "j1", "-p", "ab", "-o", "json"}).out);
  EXPECT_EQ(json["text"], "AB");
  EXPECT_EQ(json["tokens"], (std::vector<int>{'A', 'B'}));
  EXPECT_EQ(Ask({"generate", "j1"}).code, ExitCode::kUsage);
  EXPECT_EQ(Ask({"generate", "j1", "--prompt", "\xff"}).code, ExitCode::kUsage);
}

TEST_F(CliTest, VerifiesByComparingEveryHashAndNamesTheFirstThatDiffers) {
  v1::TensorHashes hashes;
  hashes.set_step(1);
  for (const char* name : {"micro-batch 0 layer 0 output", "gradient a", "weight a"}) {
    hashes.add_names(name);
    hashes.add_hashes(static_cast<uint64_t>(hashes.names_size()));
  }
  fake_->SetHashes(1, hashes);
  fake_->SetHashes(2, hashes);
  const Result same = Ask({"verify", "tiny", "--steps", "2"});
  EXPECT_EQ(same.code, ExitCode::kDone) << same.err;
  EXPECT_THAT(same.out,
              HasSubstr("identical: 3 tensors of 1 step, bit for bit, at K = 1 and K = 2"));
  ASSERT_EQ(fake_->submitted().size(), 2u);
  EXPECT_EQ(fake_->submitted()[0].spec().pipeline().stages(), 1);
  EXPECT_EQ(fake_->submitted()[1].spec().pipeline().stages(), 2);
  EXPECT_EQ(fake_->submitted()[1].spec().training().steps(), 2);
  EXPECT_TRUE(fake_->submitted()[0].options().hash_tensors());
  hashes.set_hashes(1, 99);
  hashes.set_hashes(2, 99);
  fake_->SetHashes(2, hashes);
  const Result other = Ask({"verify", "tiny"});
  EXPECT_EQ(other.code, ExitCode::kJobFailed);
  EXPECT_THAT(other.err, HasSubstr("2 of 3 tensors differ between K = 1 and K = 2; the first is "
                                   "gradient a in step 1, which differs"));
}

TEST_F(CliTest, RefusesToVerifyWithFewerWorkersThanStages) {
  fake_->SetWorkers(1);
  const Result result = Ask({"verify", "tiny"});
  EXPECT_EQ(result.code, ExitCode::kRefused);
  EXPECT_THAT(result.err, HasSubstr("the job's plan has 2 stages, and 1 workers are there"));
  EXPECT_TRUE(fake_->submitted().empty());
}

TEST_F(CliTest, RefusesToVerifyNumbersThatDependOnTheNumberOfStages) {
  v1::Job job = done_;
  job.set_id("j6");
  job.set_name("halved");
  job.mutable_spec()->mutable_pipeline()->set_boundary_dtype(v1::BOUNDARY_DTYPE_BF16);
  fake_->AddJob(job);
  const Result result = Ask({"verify", "halved"});
  EXPECT_EQ(result.code, ExitCode::kRefused);
  EXPECT_THAT(result.err, HasSubstr("job j6 (halved) has pipeline.boundary_dtype: bf16"));
  EXPECT_TRUE(fake_->submitted().empty());
}

TEST_F(CliTest, VerifiesAJobOfTheLongestName) {
  v1::Job job = done_;
  job.set_id("j5");
  job.set_name(std::string(63, 'x'));
  job.mutable_spec()->set_name(job.name());
  fake_->AddJob(job);
  (void)Ask({"verify", "j5"});
  ASSERT_FALSE(fake_->submitted().empty());
  EXPECT_EQ(fake_->submitted()[0].spec().name(), std::string(53, 'x') + "-verify-k1");
}

TEST_F(CliTest, CompletesEveryCommandAndOptionInEveryShell) {
  CLI::App app;
  CommandLine line;
  BuildCommands(&app, &line);
  for (const std::string& script : {BashCompletion(app), ZshCompletion(app), FishCompletion(app)}) {
    for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
      EXPECT_THAT(script, HasSubstr(command->get_name()));
      for (const CLI::Option* option : command->get_options()) {
        for (const std::string& name : option->get_lnames()) EXPECT_THAT(script, HasSubstr(name));
      }
    }
  }
}

TEST_F(CliTest, CompletesInARealBash) {
  std::ofstream(dir_ + "/completion.bash") << Run({"completion", "bash"}).out;
  const auto complete = [&](const std::string& words) {
    const std::string script =
        absl::StrCat("source ", dir_, "/completion.bash; COMP_WORDS=(", words,
                     "); COMP_CWORD=$((${#COMP_WORDS[@]}-1)); _headrace; echo \"${COMPREPLY[*]}\"");
    std::ofstream(dir_ + "/try.bash") << script;
    FILE* pipe = popen(absl::StrCat("bash ", dir_, "/try.bash 2>&1").c_str(), "r");
    char buffer[4096] = {};
    const size_t n = fread(buffer, 1, sizeof(buffer), pipe);
    pclose(pipe);
    return std::string(buffer, n);
  };
  EXPECT_EQ(complete("headrace sub"), "submit\n");
  EXPECT_EQ(complete("headrace list --out"), "--output\n");
  EXPECT_EQ(complete("headrace list -o js"), "json\n");
  EXPECT_EQ(complete("headrace completion z"), "zsh\n");
  EXPECT_EQ(complete(absl::StrCat("headrace run ", dir_, "/job")),
            absl::StrCat(dir_, "/job.yaml\n"));
}

TEST_F(CliTest, SaysWhyALocalClusterDoesNotStartAndLeavesNothingBehind) {
  const std::vector<std::string> run = {"run", dir_ + "/job.yaml", "--state-dir", dir_ + "/local"};
  Result result = Run(run);
  EXPECT_EQ(result.code, ExitCode::kRefused);
  EXPECT_THAT(result.err, HasSubstr("cannot start coordinator: no program"));
  std::ofstream(dir_ + "/headrace-coordinator")
      << "#!/bin/sh\necho the port is taken >&2\nexit 1\n";
  std::filesystem::permissions(dir_ + "/headrace-coordinator", std::filesystem::perms::owner_all);
  result = Run(run);
  EXPECT_EQ(result.code, ExitCode::kJobFailed);
  EXPECT_THAT(result.err, HasSubstr("coordinator ended with exit code 1; its log"));
  EXPECT_THAT(result.err, HasSubstr("the port is taken"));
  EXPECT_FALSE(std::filesystem::exists(dir_ + "/local/coordinator.address"));
  EXPECT_THAT(Run({"down", "--state-dir", dir_ + "/local"}).err, HasSubstr("nothing runs in"));
}

v1::StageTrace ForwardOf(int64_t stage, int64_t begin_ns) {
  v1::StageTrace chunk;
  PackSpans({Span{v1::SPAN_KIND_FORWARD, 1, 0, v1::MESSAGE_KIND_UNSPECIFIED, -1, 0, begin_ns,
                  begin_ns + 1000}},
            &chunk);
  chunk.set_stage(stage);
  chunk.set_number(stage + 1);
  chunk.set_clock_offset_ns(0);
  return chunk;
}

TEST_F(CliTest, TraceWritesWhatEachStageDid) {
  fake_->SetTrace({ForwardOf(0, 100), ForwardOf(1, 1100)});
  const Result run = Ask({"trace", "tiny", "-o", "-", "--svg", dir_ + "/tiny.svg"});
  EXPECT_EQ(run.code, ExitCode::kDone) << run.err;
  const Json trace = Json::parse(run.out);
  EXPECT_EQ(trace.at("otherData").at("stages").size(), 2u);
  std::ifstream svg(dir_ + "/tiny.svg");
  const std::string drawn((std::istreambuf_iterator<char>(svg)), std::istreambuf_iterator<char>());
  EXPECT_THAT(drawn, HasSubstr("tiny (j1), step 1, measured"));
  EXPECT_EQ(Ask({"trace", "tiny", "--svg", "/dev/null"}).code, ExitCode::kDone);
  EXPECT_FALSE(std::filesystem::is_regular_file("/dev/null"));
}

TEST_F(CliTest, TraceOfWhatIsNotKeptIsRefusedAndWritesNothing) {
  const std::string path = dir_ + "/trace.json";
  const Result none = Ask({"trace", "endless", "-o", path});
  EXPECT_EQ(none.code, ExitCode::kRefused);
  EXPECT_THAT(none.err, HasSubstr("job j4 has done no step yet"));
  EXPECT_EQ(Ask({"trace", "nobody", "-o", path}).code, ExitCode::kNotFound);
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(CliTest, AFileThatCannotBeWrittenIsNeverHalfWritten) {
  fake_->SetTrace({ForwardOf(0, 100)});
  const Result missing = Ask({"trace", "tiny", "-o", dir_ + "/no/such/trace.json"});
  EXPECT_EQ(missing.code, ExitCode::kUsage);
  EXPECT_THAT(missing.err, HasSubstr("-o " + dir_ + "/no/such/trace.json: cannot create"));
  std::filesystem::create_directory(dir_ + "/folder");
  const Result folder = Ask({"trace", "tiny", "--svg", dir_ + "/folder"});
  EXPECT_EQ(folder.code, ExitCode::kUsage);
  const Result plan =
      Run({"plan", dir_ + "/job.yaml", "--workers", "2:1GiB", "--svg", dir_ + "/no/such.svg"});
  EXPECT_EQ(plan.code, ExitCode::kUsage);
  EXPECT_EQ(plan.out, "");
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir_)) {
    files += entry.path().string().find(".tmp") != std::string::npos;
  }
  EXPECT_EQ(files, 0);
}

TEST_F(CliTest, PlanDrawsItsSchedule) {
  const Result both =
      Run({"plan", dir_ + "/job.yaml", "--workers", "2:1GiB", "--svg", dir_ + "/plan.svg"});
  EXPECT_EQ(both.code, ExitCode::kDone) << both.err;
  EXPECT_THAT(both.out, HasSubstr("schedule gpipe"));
  EXPECT_TRUE(std::filesystem::exists(dir_ + "/plan.svg"));
  const Result only = Run({"plan", dir_ + "/job.yaml", "--workers", "2:1GiB", "--svg", "-"});
  EXPECT_THAT(only.out, StartsWith("<svg"));
  EXPECT_THAT(only.out, HasSubstr("Schedule of tiny, predicted"));
}

}  // namespace
}  // namespace headrace
