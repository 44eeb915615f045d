#include "worker/worker_flags.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <climits>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "common/fault_point.h"
#include "common/status.h"
#include "plan/sim_device.h"
#include "worker/backend/device.h"

namespace headrace {
namespace {

constexpr char kDeviceHelp[] =
    "auto (a CUDA device if there is one that can be computed on), cpu, cuda or cuda:N, or "
    "sim:KEY=VALUE,… for a device that takes declared time instead of computing: "
    "action=20ms (or forward=, recompute=, backward=) or flops=10T; memory=16GiB; link=1Gbit/s "
    "and latency=1ms, without which tensors really travel. Only jobs submitted with --simulate "
    "run on such workers";
constexpr absl::Duration kMaxDrainTime = absl::Hours(1);

std::string DefaultName() {
  char host[HOST_NAME_MAX + 1] = "worker";
  gethostname(host, sizeof(host) - 1);
  return absl::StrCat(host, "-", getpid());
}

std::string DefaultDataDir(const std::string& name) {
  if (const char* state = std::getenv("XDG_STATE_HOME"); state != nullptr && *state != '\0') {
    return absl::StrCat(state, "/headrace/workers/", name);
  }
  const char* home = std::getenv("HOME");
  return absl::StrCat(home != nullptr ? home : "/tmp", "/.local/state/headrace/workers/", name);
}

absl::Status ReadDevice(WorkerFlags* flags) {
  if (!IsSimFlag(flags->device)) return CheckDeviceName(flags->device);
  HEADRACE_ASSIGN_OR_RETURN(const SimFlag sim, ParseSimFlag(flags->device));
  if (sim.memory_bytes > 0 && flags->memory_bytes > 0) {
    return absl::InvalidArgumentError(
        "sim: memory= is given, and --memory-limit too; expected one");
  }
  if (sim.memory_bytes > 0) flags->memory_bytes = sim.memory_bytes;
  if (flags->memory_bytes == 0) flags->memory_bytes = kDefaultSimMemoryBytes;
  flags->sim = sim.device;
  return absl::OkStatus();
}

absl::Status ReadDrainTime(WorkerFlags* flags) {
  if (absl::ParseDuration(flags->drain_time, &flags->drain_duration) &&
      flags->drain_duration >= absl::ZeroDuration() && flags->drain_duration <= kMaxDrainTime) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "'", flags->drain_time, "': expected 0 or a time such as 25s or 2m, at most 1h"));
}

}  // namespace

void DefineFlags(CLI::App* app, WorkerFlags* flags) {
  app->add_option("--coordinator", flags->coordinator,
                  "Address of the coordinator: host:port or unix:/path; required but for --probe")
      ->type_name("ADDRESS");
  app->add_option("--name", flags->name,
                  "Name among the workers; default: host name and process id")
      ->type_name("NAME");
  app->add_option("--listen", flags->listen,
                  "Address to serve at: host:port (port 0: any) or unix:/path")
      ->capture_default_str()
      ->type_name("ADDRESS");
  app->add_option(
         "--advertise", flags->advertise,
         "Address others reach this worker at; default: --listen, or the local address towards "
         "the coordinator, and for workers of this host a Unix socket of its own")
      ->type_name("ADDRESS");
  app->add_option("--device", flags->device, kDeviceHelp)
      ->capture_default_str()
      ->type_name("DEVICE");
  app->add_option(
         "--memory-limit", flags->memory_limit,
         "Most memory a stage may take, such as 8GiB; default: 80 % of what is available, of "
         "a CUDA device's free memory 90 %")
      ->type_name("SIZE");
  app->add_option("--memory-share", flags->memory_share,
                  "Without --memory-limit: the share of what is available that a stage may take; "
                  "for workers that share a machine or a device")
      ->check(CLI::Range(0.001, 1.0))
      ->type_name("SHARE");
  app->add_option("--threads", flags->threads, "Threads that compute")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str()
      ->type_name("N");
  app->add_option(
         "--link", flags->link,
         "What its network link carries, for the planner: 1Gbit/s, or with its latency one "
         "way: 1Gbit/s,1ms; default: 10Gbit/s,200us")
      ->type_name("RATE[,LATENCY]");
  app->add_option("--data-dir", flags->data_dir,
                  "Folder for blobs and snapshots; default: ~/.local/state/headrace/workers/NAME")
      ->type_name("DIR");
  app->add_option("--metrics", flags->metrics, "Serve Prometheus metrics at this host:port")
      ->type_name("HOST:PORT");
  app->add_option(
         "--drain-time", flags->drain_time,
         "Told to stop, hand the stage that is here over for at most so long, such as 90s; 0: "
         "end at once, which costs the job the steps since its last snapshot")
      ->capture_default_str()
      ->type_name("TIME");
  app->add_flag("--die-with-parent", flags->die_with_parent, "End when the parent process ends");
  app->add_flag("--probe", flags->probe,
                "Print what there is to compute on, and why not more, and end");
}

absl::Status CheckFlags(WorkerFlags* flags) {
  HEADRACE_RETURN_IF_ERROR(ReadFaults());
  if (flags->coordinator.empty()) {
    return absl::InvalidArgumentError(
        "--coordinator is required: expected host:port or unix:/path");
  }
  HEADRACE_RETURN_IF_ERROR(Annotate(CheckAddress(flags->coordinator), "--coordinator"));
  HEADRACE_RETURN_IF_ERROR(Annotate(CheckAddress(flags->listen), "--listen"));
  if (!flags->advertise.empty()) {
    HEADRACE_RETURN_IF_ERROR(Annotate(CheckAddress(flags->advertise), "--advertise"));
  }
  if (!flags->metrics.empty()) {
    HEADRACE_RETURN_IF_ERROR(Annotate(CheckTcpAddress(flags->metrics), "--metrics"));
  }
  if (flags->name.empty()) flags->name = DefaultName();
  if (flags->name.size() > 128 || flags->name.find_first_of("/ \t\n") != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--name '", flags->name, "': expected at most 128 characters, no spaces or slashes"));
  }
  if (flags->data_dir.empty()) flags->data_dir = DefaultDataDir(flags->name);
  if (!flags->link.empty()) {
    const absl::StatusOr<LinkSpeed> link = ParseLinkSpeed(flags->link);
    HEADRACE_RETURN_IF_ERROR(Annotate(link.status(), "--link"));
    flags->link_speed = *link;
  }
  if (flags->memory_share > 0 && !flags->memory_limit.empty()) {
    return absl::InvalidArgumentError(
        "--memory-share is given, and --memory-limit too; expected one");
  }
  if (!flags->memory_limit.empty()) {
    const absl::StatusOr<int64_t> bytes = ParseBytes(flags->memory_limit);
    HEADRACE_RETURN_IF_ERROR(Annotate(bytes.status(), "--memory-limit"));
    flags->memory_bytes = *bytes;
  }
  HEADRACE_RETURN_IF_ERROR(Annotate(ReadDrainTime(flags), "--drain-time"));
  return Annotate(ReadDevice(flags), "--device");
}

}  // namespace headrace
