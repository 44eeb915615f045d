#include "client/local_cluster.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/status.h"
#include "plan/sim_device.h"

namespace headrace {
namespace {

using Json = nlohmann::json;

constexpr absl::Duration kStartTime = absl::Seconds(30);
constexpr absl::Duration kStopTime = absl::Seconds(3);
constexpr absl::Duration kPoll = absl::Milliseconds(20);
// What ends by itself is started again so often in so long.
constexpr size_t kMostStarts = 5;
constexpr absl::Duration kStartsCounted = absl::Minutes(2);
constexpr absl::Duration kKeeperPoll = absl::Milliseconds(100);
constexpr size_t kLongestTmp = 60;  // leaves room for the rest of a socket's 107 bytes

// What local workers take together of what is available.
constexpr double kMemoryShare = 0.8;

struct Recorded {
  std::vector<std::pair<pid_t, int64_t>> processes;  // with their start times
  std::string socket_dir;
};

Recorded ReadRecord(const StateDir& state) {
  Recorded recorded;
  const auto text = ReadFile(state.cluster());
  if (!text.ok()) return recorded;
  const Json json = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return recorded;
  if (const auto dir = json.find("socket_dir"); dir != json.end() && dir->is_string()) {
    recorded.socket_dir = dir->get<std::string>();
  }
  const auto list = json.find("processes");
  if (list == json.end() || !list->is_array()) return recorded;
  for (const Json& process : *list) {
    if (!process.is_array() || process.size() != 2 || !process[0].is_number_integer() ||
        !process[1].is_number_integer()) {
      continue;
    }
    recorded.processes.emplace_back(process[0].get<pid_t>(), process[1].get<int64_t>());
  }
  return recorded;
}

bool Runs(const std::pair<pid_t, int64_t>& process) {
  return process.first > 1 && process.second != 0 &&
         ProcessStartTime(process.first) == process.second;
}

// Only a folder Start made: its name says so.
void RemoveSocketDir(const std::string& dir) {
  std::error_code ignored;
  if (std::filesystem::path(dir).filename().string().rfind("headrace-", 0) == 0) {
    std::filesystem::remove_all(dir, ignored);
  }
}

void RemoveRecords(const StateDir& state) {
  std::error_code ignored;
  std::filesystem::remove(state.address(), ignored);
  std::filesystem::remove(state.cluster(), ignored);
}

absl::Status InUse(const StateDir& state, const std::string& by) {
  return absl::FailedPreconditionError(
      absl::StrCat("state directory ", state.root(), " is in use by ", by,
                   ": submit to it with `headrace submit`, stop it with `headrace down`, or give "
                   "another --state-dir"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::Start(
    const StateDir& state, const LocalClusterOptions& options, Interrupt* interrupt) {
  auto cluster = std::unique_ptr<LocalCluster>(new LocalCluster(state, options, interrupt));
  absl::StatusOr<std::unique_ptr<FileLock>> lock = FileLock::Acquire(state.lock());
  if (absl::IsFailedPrecondition(lock.status())) return InUse(state, "another `headrace run`");
  if (!lock.ok()) return lock.status();
  cluster->lock_ = *std::move(lock);
  if (IsRecordedClusterRunning(state)) return InUse(state, "a cluster of `headrace up`");
  RemoveSocketDir(ReadRecord(state).socket_dir);
  RemoveRecords(state);
  HEADRACE_RETURN_IF_ERROR(cluster->StartAll());
  return cluster;
}

LocalCluster::~LocalCluster() { Stop(); }

absl::Status LocalCluster::StartAll() {
  HEADRACE_RETURN_IF_ERROR(MakeSocketDir());
  HEADRACE_RETURN_IF_ERROR(StartCoordinator());
  HEADRACE_RETURN_IF_ERROR(StartWorkers());
  return AwaitWorkers();
}

absl::Status LocalCluster::MakeSocketDir() {
  const char* tmp = getenv("TMPDIR");
  std::string dir =
      tmp != nullptr && *tmp == '/' && absl::string_view(tmp).size() <= kLongestTmp ? tmp : "/tmp";
  absl::StrAppend(&dir, "/headrace-XXXXXX");
  if (mkdtemp(dir.data()) == nullptr) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot make a folder for sockets: ", dir));
  }
  socket_dir_ = dir;
  return Record();  // if this process is killed, the next one removes the folder
}

absl::Status LocalCluster::Launch(const std::string& name, const std::string& program,
                                  std::vector<std::string> arguments) {
  if (options_.die_with_parent) arguments.push_back("--die-with-parent");
  Member member;
  member.name = name;
  member.program = absl::StrCat(options_.binary_dir, "/", program);
  HEADRACE_ASSIGN_OR_RETURN(member.process,
                            ChildProcess::Start(name, member.program, arguments, state_.log(name)));
  member.arguments = std::move(arguments);
  members_.push_back(std::move(member));
  return absl::OkStatus();
}

absl::Status LocalCluster::StartCoordinator() {
  const std::string listen =
      options_.listen.empty() ? absl::StrCat("unix:", socket_dir_, "/c") : options_.listen;
  HEADRACE_RETURN_IF_ERROR(MakeDirectories(state_.coordinator_data()));
  HEADRACE_RETURN_IF_ERROR(Launch("coordinator", "headrace-coordinator",
                                  {"--listen", listen, "--data-dir", state_.coordinator_data(),
                                   "--address-file", state_.address()}));
  const absl::Time deadline = absl::Now() + kStartTime;
  absl::StatusOr<std::string> address = ReadFile(state_.address());
  while (!address.ok()) {
    HEADRACE_RETURN_IF_ERROR(CheckRunning());
    if (absl::Now() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "the coordinator did not serve within ", absl::FormatDuration(kStartTime), "; its log ",
          state_.log("coordinator"), " ends with:\n", LogTail(state_.log("coordinator"), 15)));
    }
    if (interrupt_->Sleep(kPoll)) return absl::CancelledError("interrupted");
    address = ReadFile(state_.address());
  }
  HEADRACE_ASSIGN_OR_RETURN(coordinator_,
                            Coordinator::Connect(std::string(absl::StripSuffix(*address, "\n"))));
  return absl::OkStatus();
}

// Workers of a coordinator on TCP may get peers from other machines; sockets will not reach those.
std::string LocalCluster::WorkerListen(const std::string& name) const {
  return options_.listen.empty() ? absl::StrCat("unix:", socket_dir_, "/", name) : "127.0.0.1:0";
}

absl::Status LocalCluster::StartWorkers() {
  const int64_t memory = options_.memory_limit_bytes;
  for (int64_t i = 0; i < options_.workers; ++i) {
    const std::string name = absl::StrCat("w", i);
    HEADRACE_RETURN_IF_ERROR(MakeDirectories(state_.worker_data(name)));
    std::vector<std::string> arguments = {
        "--coordinator", coordinator_->address(),
        "--name",        name,
        "--listen",      WorkerListen(name),
        "--data-dir",    state_.worker_data(name),
        "--threads",     absl::StrCat(options_.threads_per_worker),
        "--drain-time",  "0"};  // they end together: nobody is left to hand over to
    if (!options_.device.empty()) {
      arguments.push_back("--device");
      arguments.push_back(options_.device);
    }
    if (memory > 0) {
      arguments.push_back("--memory-limit");
      arguments.push_back(absl::StrCat(memory));
    } else if (!IsSimFlag(options_.device)) {
      // A simulated worker takes no memory, and declares how much it would.
      arguments.push_back("--memory-share");
      arguments.push_back(absl::StrCat(kMemoryShare / static_cast<double>(options_.workers)));
    }
    HEADRACE_RETURN_IF_ERROR(Launch(name, "headrace-worker", std::move(arguments)));
  }
  return absl::OkStatus();
}

absl::Status LocalCluster::AwaitWorkers() {
  const absl::Time deadline = absl::Now() + kStartTime;
  while (true) {
    HEADRACE_RETURN_IF_ERROR(CheckRunning());
    HEADRACE_ASSIGN_OR_RETURN(
        const v1::ListWorkersResponse response,
        coordinator_->Call(&v1::CoordinatorService::Stub::ListWorkers, v1::ListWorkersRequest()));
    const auto alive = std::count_if(response.workers().begin(), response.workers().end(),
                                     [](const v1::WorkerInfo& worker) { return worker.alive(); });
    if (alive >= options_.workers) return absl::OkStatus();
    if (absl::Now() > deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("only ", alive, " of ", options_.workers, " workers registered within ",
                       absl::FormatDuration(kStartTime), "; their logs are ", state_.log("w*")));
    }
    if (interrupt_->Sleep(kPoll)) return absl::CancelledError("interrupted");
  }
}

absl::Status LocalCluster::CheckRunning() {
  for (const Member& member : members_) HEADRACE_RETURN_IF_ERROR(member.process->CheckRunning());
  return absl::OkStatus();
}

absl::Status LocalCluster::StartAgain(Member* member, absl::Time now) {
  const absl::Status how = member->process->CheckRunning();
  if (how.ok()) return how;
  member->ended = std::min(member->ended, now);
  if (now - member->ended < options_.restart_pause) return absl::OkStatus();
  std::erase_if(member->starts, [&](absl::Time at) { return now - at > kStartsCounted; });
  if (member->starts.size() >= kMostStarts) {
    return Annotate(how, absl::StrCat("given up after ", kMostStarts, " starts in ",
                                      absl::FormatDuration(kStartsCounted)));
  }
  member->starts.push_back(now);
  member->ended = absl::InfiniteFuture();
  HEADRACE_ASSIGN_OR_RETURN(member->process,
                            ChildProcess::Start(member->name, member->program, member->arguments,
                                                state_.log(member->name), LogMode::kAppend));
  return absl::OkStatus();
}

// The thread also stops what it started: with --die-with-parent a program ends with the thread that
// started it.
void LocalCluster::Keep(std::function<void(const absl::Status&)> gave_up) {
  keeper_ = std::thread([this, gave_up = std::move(gave_up)] {
    absl::Status status;
    while (!stopping_.WaitForNotificationWithTimeout(kKeeperPoll)) {
      for (Member& member : members_) {
        if (status.ok()) status = StartAgain(&member, absl::Now());
      }
      if (status.ok()) continue;
      gave_up(status);
      stopping_.WaitForNotification();
    }
    StopChildren();
  });
}

void LocalCluster::StopChildren() {
  for (const Member& member : members_) member.process->Terminate();
  const absl::Time deadline = absl::Now() + kStopTime;
  for (const Member& member : members_) member.process->Join(deadline);
  members_.clear();
}

void LocalCluster::Stop() {
  if (socket_dir_.empty()) return;
  if (keeper_.joinable()) {
    stopping_.Notify();
    keeper_.join();
  } else {
    StopChildren();
  }
  RemoveSocketDir(socket_dir_);
  socket_dir_.clear();
  RemoveRecords(state_);
}

absl::Status LocalCluster::Record() const {
  Json json;
  json["socket_dir"] = socket_dir_;
  json["processes"] = Json::array();
  for (const Member& member : members_) {
    const pid_t pid = member.process->pid();
    json["processes"].push_back({pid, ProcessStartTime(pid)});
  }
  return WriteFileAtomically(state_.cluster(), json.dump(2) + "\n");
}

absl::Status LocalCluster::Release() {
  HEADRACE_RETURN_IF_ERROR(Record());
  members_.clear();
  socket_dir_.clear();
  return absl::OkStatus();
}

bool IsRecordedClusterRunning(const StateDir& state) {
  const Recorded recorded = ReadRecord(state);
  return std::any_of(recorded.processes.begin(), recorded.processes.end(), Runs);
}

absl::StatusOr<int> StopRecordedCluster(const StateDir& state) {
  absl::StatusOr<std::unique_ptr<FileLock>> lock = FileLock::Acquire(state.lock());
  if (absl::IsFailedPrecondition(lock.status())) {
    return absl::FailedPreconditionError(
        absl::StrCat("a `headrace run` works in ", state.root(), "; end it with Ctrl-C"));
  }
  if (!lock.ok()) return lock.status();
  const Recorded recorded = ReadRecord(state);
  int stopped = 0;
  for (const auto& process : recorded.processes) {
    if (!Runs(process) || kill(process.first, SIGTERM) != 0) continue;
    kill(process.first, SIGCONT);  // a stopped one would not hear it
    ++stopped;
  }
  const absl::Time deadline = absl::Now() + kStopTime;
  for (const auto& process : recorded.processes) {
    while (Runs(process) && absl::Now() < deadline) absl::SleepFor(kPoll);
    if (Runs(process)) kill(process.first, SIGKILL);
  }
  RemoveSocketDir(recorded.socket_dir);
  RemoveRecords(state);
  return stopped;
}

}  // namespace headrace
