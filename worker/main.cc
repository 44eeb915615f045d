// headrace-worker: serves one stage of one job at a time. Flags and signals only.
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <climits>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <random>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/channel.h"
#include "common/file.h"
#include "common/flags.h"
#include "common/listen_error.h"
#include "common/log.h"
#include "common/process.h"
#include "common/sha256.h"
#include "common/status.h"
#include "common/steady_clock.h"
#include "plan/sim_device.h"
#include "worker/advertise.h"
#include "worker/backend/cpu/measure.h"
#include "worker/backend/cuda_probe.h"
#include "worker/backend/device.h"
#include "worker/checkpoint/slice_store.h"
#include "worker/clock_alignment.h"
#include "worker/device_speed.h"
#include "worker/heartbeater.h"
#include "worker/layer_profiler.h"
#include "worker/service.h"
#include "worker/sim/sim_clock.h"
#include "worker/worker_flags.h"

namespace headrace {
namespace {

constexpr int kExitUsage = 2;
constexpr int kExitDeviceLost = 6;
// Of what is available: of a host's memory, which others use too, and of what is free on a device.
constexpr double kDefaultMemoryShare = 0.8;
constexpr double kDefaultDeviceShare = 0.9;
// Of the host's memory, that may be pinned beside a device's.
constexpr double kStagingShare = 0.5;
constexpr absl::Duration kLookForHandover = absl::Milliseconds(20);
constexpr absl::Duration kEndStageTime = absl::Milliseconds(800);
constexpr absl::Duration kShutdownTime = absl::Milliseconds(1200);
constexpr absl::Duration kGoodbyeTime = absl::Milliseconds(200);

// Two libraries with threads of their own that spin while they wait halve each other's speed, and
// GNU OpenMP reads this once, before main.
void ReexecWithPassiveWaiting(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  setenv("OMP_WAIT_POLICY", "passive", 1);
  char self[PATH_MAX] = "";
  const ssize_t size = readlink("/proc/self/exe", self, sizeof(self) - 1);
  if (size > 0) execv(self, argv);
  LogWarning("cannot restart with OMP_WAIT_POLICY=passive; several threads may be slow");
}

// Of the device, what a stage may take.
absl::StatusOr<int64_t> MemoryLimit(const WorkerFlags& flags, const DeviceInfo& device) {
  if (flags.memory_bytes == 0) {
    double share = device.kind == "cuda" ? kDefaultDeviceShare : kDefaultMemoryShare;
    if (flags.memory_share > 0) share = flags.memory_share;
    return static_cast<int64_t>(share * static_cast<double>(device.available_bytes));
  }
  if (device.kind == "cuda" && flags.memory_bytes > device.available_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("--memory-limit: ", FormatBytes(flags.memory_bytes), ", but only ",
                     FormatBytes(device.available_bytes), " of ", device.name, " are free"));
  }
  return flags.memory_bytes;
}

// All but the address, which is known once the server listens. `device` is that of a real worker.
absl::StatusOr<v1::WorkerInfo> DescribeSelf(const WorkerFlags& flags, const DeviceInfo& device) {
  v1::WorkerInfo self;
  self.set_name(flags.name);
  self.set_threads(flags.threads);
  if (flags.sim) {
    self.set_device("sim");
    self.set_device_name(DescribeSim(*flags.sim));
    self.set_memory_limit_bytes(flags.memory_bytes);
    self.set_flops_per_second(flags.sim->flops_per_second());
    *self.mutable_sim() = *flags.sim;
  } else {
    if (!device.note.empty()) LogInfo(absl::StrCat("computing on the CPU: ", device.note));
    self.set_device(device.kind);
    self.set_device_name(device.name);
    self.set_bf16(device.bf16);
    self.set_capability(device.capability);
    HEADRACE_ASSIGN_OR_RETURN(const int64_t limit, MemoryLimit(flags, device));
    self.set_memory_limit_bytes(limit);
    if (device.kind == "cuda") {
      self.set_device_free_bytes(device.available_bytes);
      HEADRACE_ASSIGN_OR_RETURN(const double flops, MeasureCudaFlops(device.open, device.bf16));
      self.set_flops_per_second(flops);
    } else {
      self.set_flops_per_second(MeasureFlops(flags.threads));
    }
  }
  self.set_link_bytes_per_second(flags.link_speed.bytes_per_second);
  self.set_link_latency_s(flags.link_speed.latency_s);
  self.set_version(HEADRACE_VERSION);
  std::random_device random;
  self.set_instance(absl::StrFormat("%08x%08x", random(), random()));
  self.mutable_host()->set_id(HostId());
  return self;
}

// Why the process is to end, set by a thread of another before it raises SIGTERM, read after.
struct Refusal {
  absl::Mutex mu;
  absl::Status why ABSL_GUARDED_BY(mu);

  // The first reason counts.
  void End(const absl::Status& reason) {
    absl::MutexLock lock(&mu);
    why.Update(reason);
    kill(getpid(), SIGTERM);
  }
  bool none() {
    absl::MutexLock lock(&mu);
    return why.ok();
  }
};

HeartbeaterCallbacks MakeCallbacks(const WorkerFlags& flags, WorkerService* service,
                                   Reporter* reporter, ClockAlignment* clock,
                                   std::atomic<bool>* away, Refusal* refusal) {
  HeartbeaterCallbacks callbacks;
  callbacks.registering = [service, reporter](v1::RegisterWorkerRequest* request) {
    if (!reporter->Hold()) return false;
    service->Describe(request);
    return true;
  };
  callbacks.registered = [reporter](const std::string& coordinator) {
    reporter->Resume(coordinator);
  };
  callbacks.clock = [clock, away](const v1::ClockReading& reading, int64_t asked_ns,
                                  int64_t heard_ns) {
    clock->Add(reading, asked_ns, heard_ns);
    *away = false;
  };
  callbacks.current = [service](v1::HeartbeatRequest* request) { service->Describe(request); };
  callbacks.stop_stage = [service](const std::string& job_id, int64_t generation) {
    service->EndStage(job_id, generation);
  };
  callbacks.drop = [service](const v1::SliceLimit& limit) { service->Drop(limit); };
  callbacks.away = [service, away, address = flags.coordinator](absl::Duration silence) {
    *away = true;
    service->CoordinatorAway(address, silence);
  };
  callbacks.refused = [refusal](const absl::Status& why) { refusal->End(why); };
  return callbacks;
}

// Told to stop: waits until the coordinator, which hears of it with the next heartbeat, has moved
// the stage away that is here. Ends before with the time for it, when there is no coordinator to do
// it, or with another signal.
void HandOver(const WorkerFlags& flags, WorkerService* service, const std::atomic<bool>& away) {
  service->Drain();
  if (!service->serving() || flags.drain_duration == absl::ZeroDuration()) return;
  LogInfo(absl::StrCat("told to stop: handing the stage over, for at most ",
                       absl::FormatDuration(flags.drain_duration),
                       "; another signal ends it at once"));
  const absl::Time deadline = absl::Now() + flags.drain_duration;
  while (service->serving() && !away && absl::Now() < deadline) {
    if (SignalComes(kLookForHandover)) return;
  }
  if (service->serving()) {
    LogWarning(away ? "the coordinator is away: nobody takes the stage over"
                    : "the stage was not taken over in time");
  }
}

absl::Status Serve(const WorkerFlags& flags) {
  HEADRACE_RETURN_IF_ERROR(MakeDirectories(flags.data_dir));
  HEADRACE_ASSIGN_OR_RETURN(const std::unique_ptr<SliceStore> slices,
                            SliceStore::Open(absl::StrCat(flags.data_dir, "/snapshots")));
  HEADRACE_ASSIGN_OR_RETURN(std::unique_ptr<WorkerMetrics> created,
                            WorkerMetrics::Create(flags.metrics));
  // Never destroyed: the exposer's web server takes up to 2 s to stop, and the process ends anyway.
  static WorkerMetrics* const metrics = created.release();
  const auto channel = MakeChannel(flags.coordinator, ChannelUse::kHeartbeats);
  const auto registry = v1::WorkerRegistryService::NewStub(channel);
  // Blobs on a connection of their own: they must not hold up heartbeats.
  const auto blobs =
      v1::CoordinatorService::NewStub(MakeChannel(flags.coordinator, ChannelUse::kBlobs));

  DeviceInfo device;
  if (!flags.sim) {
    HEADRACE_ASSIGN_OR_RETURN(device, ProbeDevice(flags.device));
  }
  HEADRACE_ASSIGN_OR_RETURN(v1::WorkerInfo self, DescribeSelf(flags, device));
  Refusal refusal;
  // The first hash maps 2 MiB of the crypto library: now, not in a job whose memory was planned.
  Sha256Hex("");
  StageDirectory directory;
  Reporter reporter(registry.get(), flags.name, self.instance());
  WorkerContext context;
  context.limits.memory_bytes = self.memory_limit_bytes();
  context.limits.threads = flags.threads;
  context.limits.simulated = flags.sim.has_value();
  context.limits.bf16 = self.bf16();
  context.limits.device = DeviceKindOf(self.device());
  context.limits.staging_bytes =
      static_cast<int64_t>(kStagingShare * static_cast<double>(device.host_bytes));
  context.open_device = device.open;
  context.device_lost = [&refusal](const std::string& why) {
    refusal.End(absl::DataLossError(
        absl::StrCat("ending, so that a new process may open the device again: ", why)));
  };
  context.data_dir = flags.data_dir;
  context.slices = slices.get();
  context.coordinator = blobs.get();
  context.reporter = &reporter;
  context.directory = &directory;
  context.metrics = metrics;
  LayerProfiler profiler(context.limits, self.flops_per_second(), device.open);
  if (!flags.sim) {  // a simulated one declares its speed
    context.profiler = &profiler;
    self.set_profiles_layers(true);
  }
  ClockAlignment clock(SteadyClockName());
  context.clock = &clock;
  std::atomic<bool> away = false;  // the coordinator
  WorkerService service(flags.name, context);

  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  int port = 0;
  HEADRACE_RETURN_IF_ERROR(AddListener(&builder, flags.listen, &port));
  // An address to be reached at that was given is the one to be reached at.
  if (flags.advertise.empty() && !absl::StartsWith(flags.listen, "unix:")) {
    const std::string local = LocalAddress(self.instance());
    builder.AddListeningPort(local, grpc::InsecureServerCredentials());
    self.mutable_host()->set_local_address(local);
  }
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) {
    return ListenError(flags.listen);
  }
  HEADRACE_ASSIGN_OR_RETURN(
      *self.mutable_address(),
      AdvertisedAddress(flags.advertise, flags.listen, port, flags.coordinator));
  LogInfo(absl::StrCat(
      "serving at ", self.address(), ", ", FormatBytes(self.memory_limit_bytes()), ", ",
      flags.threads, flags.threads == 1 ? " thread, " : " threads, ",
      flags.sim ? DescribeSim(*flags.sim)
                : absl::StrCat(self.device_name(), ", ",
                               static_cast<int64_t>(self.flops_per_second() / 1e9), " GFLOP/s")));
  {
    const Heartbeater heartbeater(
        registry.get(), self, MakeCallbacks(flags, &service, &reporter, &clock, &away, &refusal));
    WaitForSignal();
    if (refusal.none()) HandOver(flags, &service, away);
  }
  const absl::Time deadline = absl::Now() + kShutdownTime;
  const bool ended = service.Close("the worker was told to stop", absl::Now() + kEndStageTime);
  const bool told = reporter.Flush(absl::Now() + absl::Milliseconds(200)).ok();
  // Whoever does not hear it waits for the lease to run out, as after a crash; and what is still to
  // be reported needs the name.
  if (told) SayGoodbye(registry.get(), self, absl::Now() + kGoodbyeTime).IgnoreError();
  {
    // The runtime of a lost device would wait for it when the process ends.
    absl::MutexLock lock(&refusal.mu);
    if (absl::IsDataLoss(refusal.why)) {
      LogError(std::string(refusal.why.message()));
      _exit(kExitDeviceLost);
    }
  }
  // An action that computes for longer than this cannot be interrupted; the process can.
  if (!ended) _exit(0);
  server->Shutdown(absl::ToChronoTime(deadline));
  absl::MutexLock lock(&refusal.mu);
  return refusal.why;
}

// --probe: each device, and of each kind that is missing the reason.
int Probe(const std::string& device) {
  const absl::StatusOr<DeviceInfo> chosen = ProbeDevice(device);
  if (chosen.ok()) {
    std::cout << "host: " << FormatBytes(chosen->host_bytes) << " of memory available\n";
  }
  std::cout << Describe(ProbeCuda());
  if (!chosen.ok()) {
    std::cerr << "headrace-worker: " << chosen.status().message() << "\n";
    return 1;
  }
  std::cout << "--device " << device << " computes on: " << chosen->kind;
  if (!chosen->note.empty()) std::cout << " (" << chosen->note << ")";
  std::cout << "\n"
            << chosen->kind << ": " << chosen->name << ", " << FormatBytes(chosen->available_bytes)
            << (chosen->kind == "cuda" ? " free" : " available")
            << (chosen->bf16 ? ", multiplies bf16" : ", does not multiply bf16") << "\n";
  return 0;
}

int Main(int argc, char** argv) {
  ReexecWithPassiveWaiting(argv);
  TuneMalloc();
  BlockSignals();
  setenv("GRPC_VERBOSITY", "NONE", 0);  // what went wrong is in statuses
  WorkerFlags flags;
  CLI::App app("Serves stages of training jobs for a Headrace coordinator.", "headrace-worker");
  app.set_version_flag("--version", "headrace-worker " HEADRACE_VERSION);
  DefineFlags(&app, &flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : kExitUsage;
  }
  if (flags.probe) return Probe(flags.device);
  if (const absl::Status status = CheckFlags(&flags); !status.ok()) {
    std::cerr << "headrace-worker: " << status.message() << "\n";
    return kExitUsage;
  }
  if (flags.die_with_parent) DieWithParent();
  if (flags.sim) UseExactTimers();
  SetLogSource(absl::StrCat("worker ", flags.name));
  const absl::Status status = Serve(flags);
  if (status.ok()) return 0;
  LogError(std::string(status.message()));
  return absl::IsInvalidArgument(status) ? kExitUsage : 1;
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) { return headrace::Main(argc, argv); }
