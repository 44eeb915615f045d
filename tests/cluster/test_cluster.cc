#include "tests/cluster/test_cluster.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <iostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/channel.h"
#include "common/file.h"
#include "common/grpc_status.h"
#include "common/status.h"

namespace headrace {
namespace {

constexpr absl::Duration kStartTime = absl::Seconds(20);
constexpr absl::Duration kCallTime = absl::Seconds(5);
constexpr size_t kTailBytes = 6000;

std::string Binary(const std::string& name) { return absl::StrCat(HEADRACE_BIN_DIR, "/", name); }

void SetDeadline(grpc::ClientContext* context, absl::Time deadline) {
  context->set_deadline(absl::ToChronoTime(deadline));
}

std::vector<WorkerOptions> Plain(int num_workers) {
  std::vector<WorkerOptions> workers;
  for (int i = 0; i < num_workers; ++i) {
    workers.emplace_back();
    workers.back().name = absl::StrCat("w", i);
  }
  return workers;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TestCluster>> TestCluster::Start(int num_workers) {
  return Start(Plain(num_workers));
}

absl::StatusOr<std::unique_ptr<TestCluster>> TestCluster::Start(
    const std::vector<WorkerOptions>& workers) {
  auto cluster = std::unique_ptr<TestCluster>(new TestCluster);
  HEADRACE_RETURN_IF_ERROR(cluster->StartCoordinator("127.0.0.1:0"));
  for (const WorkerOptions& worker : workers) {
    HEADRACE_RETURN_IF_ERROR(cluster->AddWorker(worker));
  }
  HEADRACE_RETURN_IF_ERROR(
      cluster->WaitForFreeWorkers(static_cast<int>(workers.size()), kStartTime));
  return cluster;
}

TestCluster::~TestCluster() {
  processes_.clear();
  if (testing::UnitTest::GetInstance()->Failed()) PrintLogs();
}

std::string TestCluster::WriteFile(const std::string& name, const std::string& content) {
  const std::string path = dir_ / name;
  EXPECT_TRUE(WriteFileAtomically(path, content).ok());
  return path;
}

absl::StatusOr<std::unique_ptr<ChildProcess>> TestCluster::StartProcess(
    const std::string& label, std::vector<std::string> arguments,
    std::vector<std::string> environment) {
  ChildProcess::Options options;
  options.arguments = std::move(arguments);
  options.environment = std::move(environment);
  options.environment.insert(
      options.environment.end(),
      {absl::StrCat("HEADRACE_COORDINATOR=", address_),
       absl::StrCat("XDG_STATE_HOME=", dir_ / "state"), "NO_COLOR=1", "OMP_WAIT_POLICY=passive"});
  options.stdout_path = LogPath(label);
  options.stderr_path = LogPath(label);
  options.directory = dir_.path();
  return ChildProcess::Start(options);
}

absl::Status TestCluster::StartCoordinator(const std::string& listen) {
  const std::string address_file = dir_ / "address";
  unlink(address_file.c_str());
  HEADRACE_ASSIGN_OR_RETURN(
      processes_["coordinator"],
      StartProcess("coordinator",
                   {Binary("headrace-coordinator"), "--listen", listen, "--data-dir",
                    dir_ / "coordinator", "--address-file", address_file, "--die-with-parent"},
                   coordinator_environment_));
  const absl::Time deadline = absl::Now() + kStartTime;
  absl::StatusOr<std::string> address = ReadFile(address_file);
  while (!address.ok() && absl::Now() < deadline && processes_["coordinator"]->running()) {
    absl::SleepFor(kLook);
    address = ReadFile(address_file);
  }
  if (!address.ok()) {
    return absl::UnavailableError(
        absl::StrCat("the coordinator did not start: ", Log("coordinator")));
  }
  address_ = address->substr(0, address->find_last_not_of('\n') + 1);
  stub_ = v1::CoordinatorService::NewStub(MakeChannel(address_, ChannelUse::kControl));
  return absl::OkStatus();
}

absl::Status TestCluster::AddWorker(const WorkerOptions& options) {
  options_[options.name] = options;
  std::vector<std::string> arguments = {
      Binary("headrace-worker"), "--coordinator",      address_,    "--name", options.name,
      "--memory-limit",          options.memory_limit, "--threads", "1",      "--data-dir",
      dir_ / options.name,       "--die-with-parent"};
  if (options.cuttable) {
    const std::string socket = dir_ / (options.name + ".sock");
    unlink(socket.c_str());
    if (!links_.contains(options.name)) {
      HEADRACE_ASSIGN_OR_RETURN(links_[options.name], Proxy::Start(socket));
    }
    arguments.insert(arguments.end(), {"--listen", absl::StrCat("unix:", socket), "--advertise",
                                       links_[options.name]->address()});
  } else {
    arguments.insert(arguments.end(), {"--listen", "127.0.0.1:0"});
  }
  arguments.insert(arguments.end(), options.more_flags.begin(), options.more_flags.end());
  arguments.insert(arguments.begin(), options.prefix.begin(), options.prefix.end());
  HEADRACE_ASSIGN_OR_RETURN(processes_[options.name],
                            StartProcess(options.name, arguments, options.environment));
  return absl::OkStatus();
}

absl::Status TestCluster::RestartWorker(const std::string& worker) {
  return AddWorker(WorkerOptions(options_.at(worker)));
}

absl::Status TestCluster::RestartWorker(const std::string& worker,
                                        std::vector<std::string> environment) {
  WorkerOptions options = options_.at(worker);
  options.environment = std::move(environment);
  return AddWorker(options);
}

void TestCluster::SetCoordinatorEnvironment(std::vector<std::string> environment) {
  coordinator_environment_ = std::move(environment);
}

ChildProcess& TestCluster::process(const std::string& name) { return *processes_.at(name); }

void TestCluster::Kill(const std::string& worker) {
  process(worker).Signal(SIGKILL);
  process(worker).Wait(absl::InfiniteFuture()).IgnoreError();
}

void TestCluster::Pause(const std::string& worker) { process(worker).Signal(SIGSTOP); }
void TestCluster::Resume(const std::string& worker) { process(worker).Signal(SIGCONT); }
void TestCluster::KillCoordinator() { Kill("coordinator"); }
absl::Status TestCluster::RestartCoordinator() { return StartCoordinator(address_); }
Proxy& TestCluster::Link(const std::string& worker) { return *links_.at(worker); }

absl::StatusOr<int> TestCluster::Terminate(const std::string& worker) {
  process(worker).Signal(SIGTERM);
  return process(worker).Wait(absl::Now() + absl::Seconds(10));
}

std::string TestCluster::LogPath(const std::string& name) const { return dir_ / (name + ".log"); }

std::string TestCluster::Log(const std::string& name) const {
  return ReadFile(LogPath(name)).value_or("");
}

absl::Status TestCluster::WaitForFreeWorkers(int num_workers, absl::Duration time) {
  const absl::Time deadline = absl::Now() + time;
  while (true) {
    grpc::ClientContext context;
    SetDeadline(&context, absl::Now() + kCallTime);
    v1::ListWorkersResponse response;
    const grpc::Status status = stub_->ListWorkers(&context, {}, &response);
    int free = 0;
    for (const v1::WorkerInfo& worker : response.workers()) {
      if (worker.alive() && worker.job_id().empty()) ++free;
    }
    if (status.ok() && free == num_workers) return absl::OkStatus();
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("expected ", num_workers, " free workers, there are ", free, " of:\n",
                       status.ok() ? response.ShortDebugString() : status.error_message()));
    }
    absl::SleepFor(kLook);
  }
}

ClientRun TestCluster::Run(const std::vector<std::string>& arguments, absl::Duration time) {
  const std::string label = absl::StrCat("client-", num_client_runs_++);
  ChildProcess::Options options;
  options.arguments = {Binary("headrace")};
  options.arguments.insert(options.arguments.end(), arguments.begin(), arguments.end());
  options.environment = {absl::StrCat("HEADRACE_COORDINATOR=", address_),
                         absl::StrCat("XDG_STATE_HOME=", dir_ / "state"), "NO_COLOR=1"};
  options.stdout_path = dir_ / (label + ".out");
  options.stderr_path = LogPath(label);
  options.directory = dir_.path();
  ClientRun run;
  absl::StatusOr<std::unique_ptr<ChildProcess>> client = ChildProcess::Start(options);
  if (!client.ok()) {
    ADD_FAILURE() << client.status();
    return run;
  }
  run.exit_code = (*client)->Wait(absl::Now() + time).value_or(-1);
  client->reset();
  run.out = ReadFile(options.stdout_path).value_or("");
  run.err = ReadFile(options.stderr_path).value_or("");
  return run;
}

absl::StatusOr<std::unique_ptr<ChildProcess>> TestCluster::StartClient(
    const std::string& label, const std::vector<std::string>& arguments) {
  std::vector<std::string> all = {Binary("headrace")};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return StartProcess(label, std::move(all), {});
}

absl::StatusOr<std::string> TestCluster::Submit(const std::string& job_file_text) {
  const std::string path =
      WriteFile(absl::StrCat("job-", num_client_runs_, ".yaml"), job_file_text);
  const ClientRun run = Run({"submit", path, "-o", "json"});
  if (run.exit_code != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("submit ended with ", run.exit_code, ": ", run.err));
  }
  const auto json = nlohmann::json::parse(run.out, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("job_id")) {
    return absl::InternalError(absl::StrCat("submit -o json says: ", run.out));
  }
  return json["job_id"].get<std::string>();
}

nlohmann::json TestCluster::Describe(const std::string& job) {
  const ClientRun run = Run({"describe", job, "-o", "json"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const auto json = nlohmann::json::parse(run.out, nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(json.is_object()) << run.out;
  return json.is_object() ? json : nlohmann::json();
}

absl::StatusOr<v1::Job> TestCluster::FindJob(const std::string& id) {
  grpc::ClientContext context;
  SetDeadline(&context, absl::Now() + kCallTime);
  v1::ListJobsResponse response;
  HEADRACE_RETURN_IF_ERROR(FromGrpc(stub_->ListJobs(&context, {}, &response)));
  for (const v1::Job& job : response.jobs()) {
    if (job.id() == id) return job;
  }
  return absl::NotFoundError(absl::StrCat("no job ", id));
}

absl::StatusOr<v1::Job> TestCluster::WaitForStep(const std::string& job, int64_t step,
                                                 absl::Duration time) {
  return WaitForJob(job, time, [step](const v1::Job& j) { return j.step() >= step; });
}

absl::StatusOr<v1::Job> TestCluster::WaitForEnd(const std::string& job, absl::Duration time) {
  return WaitForJob(job, time, IsEnded);
}

absl::StatusOr<v1::Job> TestCluster::WaitForState(const std::string& job, v1::JobState state,
                                                  absl::Duration time) {
  return WaitForJob(job, time, [state](const v1::Job& j) { return j.state() == state; });
}

void TestCluster::PrintLogs() const {
  for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
    if (entry.path().extension() != ".log") continue;
    const std::string log = ReadFile(entry.path().string()).value_or("");
    if (log.empty()) continue;
    const size_t from = log.size() > kTailBytes ? log.size() - kTailBytes : 0;
    std::cerr << "---- " << entry.path().filename().string() << "\n" << log.substr(from) << "\n";
  }
}

bool IsEnded(const v1::Job& job) {
  return job.state() == v1::JOB_STATE_DONE || job.state() == v1::JOB_STATE_FAILED ||
         job.state() == v1::JOB_STATE_CANCELLED;
}

std::string Standing(const v1::Job& job) {
  return absl::StrCat(v1::JobState_Name(job.state()), " at step ", job.step(), ": ", job.message());
}

}  // namespace headrace
