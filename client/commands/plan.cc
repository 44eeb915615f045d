#include "client/render/plan.h"

#include "absl/strings/str_cat.h"
#include "client/commands/command.h"
#include "client/commands/worker_list.h"
#include "client/job_file.h"
#include "client/output_file.h"
#include "client/picture/gantt.h"
#include "client/picture/plan_gantt.h"
#include "client/render/json.h"
#include "common/status.h"
#include "plan/planner/planner.h"
#include "plan/sim_device.h"

namespace headrace {
namespace {

struct PlanOptions {
  std::string file;
  std::string workers, link, svg;
  int threads = 1;
  std::string device;
  bool simulate = false;
};

absl::Status SetDevice(const std::string& device, std::vector<PlanWorker>* workers) {
  if (!IsSimFlag(device)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--device: '", device, "'; expected sim:KEY=VALUE,…"));
  }
  const absl::StatusOr<SimFlag> sim = ParseSimFlag(device);
  if (!sim.ok()) return Annotate(sim.status(), "--device");
  if (sim->memory_bytes > 0) {
    return absl::InvalidArgumentError(
        "--device: sim: memory= is given, and --workers has each worker's memory; expected one");
  }
  for (PlanWorker& worker : *workers) {
    worker.sim = sim->device;
    worker.flops_per_second = sim->device.flops_per_second();
  }
  return absl::OkStatus();
}

// What does not go together.
absl::Status CheckOptions(const PlanOptions& options) {
  if (options.workers.empty() && !options.device.empty()) {
    return absl::InvalidArgumentError(
        "--device goes with --workers; for a cluster's simulated workers give --simulate");
  }
  if (!options.workers.empty() && options.simulate) {
    return absl::InvalidArgumentError("--simulate is for a cluster; with --workers give --device");
  }
  return absl::OkStatus();
}

// Without a cluster: the same planner, here.
absl::StatusOr<v1::Plan> PlanOffline(const JobFile& file, const PlanOptions& options) {
  HEADRACE_ASSIGN_OR_RETURN(std::vector<PlanWorker> workers,
                            ParseWorkerList(options.workers, options.threads));
  if (!options.device.empty()) HEADRACE_RETURN_IF_ERROR(SetDevice(options.device, &workers));
  if (!options.link.empty()) {
    const absl::StatusOr<LinkSpeed> link = ParseLinkSpeed(options.link);
    HEADRACE_RETURN_IF_ERROR(Annotate(link.status(), "--link"));
    for (PlanWorker& worker : workers) worker.link = *link;
  }
  absl::StatusOr<v1::Plan> plan = PlanJob(file.spec, nullptr, workers);
  // Here nobody waits for more workers: too few is a refusal.
  if (absl::IsUnavailable(plan.status())) {
    return absl::FailedPreconditionError(plan.status().message());
  }
  if (absl::IsInvalidArgument(plan.status())) return file.Locate(plan.status());
  return plan;
}

absl::StatusOr<v1::Plan> PlanOnCluster(const JobFile& file, bool simulate,
                                       const CommandLine& line) {
  HEADRACE_ASSIGN_OR_RETURN(const auto coordinator, ConnectFrom(line));
  v1::PlanJobRequest request;
  *request.mutable_spec() = file.spec;
  request.set_simulate(simulate);
  HEADRACE_ASSIGN_OR_RETURN(v1::PlanJobResponse response,
                            coordinator->Call(&v1::CoordinatorService::Stub::PlanJob, request));
  return std::move(*response.mutable_plan());
}

absl::Status ShowPlan(const CommandLine& line, const PlanOptions& options,
                      const Environment& environment) {
  HEADRACE_RETURN_IF_ERROR(CheckOptions(options));
  HEADRACE_ASSIGN_OR_RETURN(const JobFile file, ReadJobFile(options.file));
  HEADRACE_ASSIGN_OR_RETURN(const v1::Plan plan, options.workers.empty()
                                                     ? PlanOnCluster(file, options.simulate, line)
                                                     : PlanOffline(file, options));
  const Console& console = environment.console;
  if (!options.svg.empty()) {
    HEADRACE_ASSIGN_OR_RETURN(const Gantt gantt,
                              PlanGantt(plan, file.spec.pipeline(), file.spec.name()));
    HEADRACE_ASSIGN_OR_RETURN(const std::string svg, DrawGantt(gantt));
    HEADRACE_RETURN_IF_ERROR(WriteOutput("--svg", options.svg, svg, console));
    if (options.svg == "-") return absl::OkStatus();
  }
  *console.out << (line.format() == Format::kText ? RenderPlan(plan, {}, console.TableWidth())
                                                  : Print(ToJson(plan), line.format()));
  return absl::OkStatus();
}

}  // namespace

void AddPlan(CLI::App* app, CommandLine* line) {
  CLI::App* command = app->add_subcommand(
      "plan", "Show how a job would run: stages, memory, bubble, schedule. Starts nothing");
  const auto options = std::make_shared<PlanOptions>();
  command->add_option("file", options->file, "Job file (docs/job-file.md)")
      ->required()
      ->type_name("FILE");
  command
      ->add_option("--workers", options->workers,
                   "Plan for these workers instead of a cluster's: COUNT:MEMORY, such as "
                   "4:8GiB,2:24GiB")
      ->type_name("LIST");
  command->add_option("--threads-per-worker", options->threads, "Threads of each such worker")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024))
      ->type_name("N");
  command
      ->add_option("--device", options->device,
                   "With --workers: they are simulated, such as sim:action=20ms "
                   "(`headrace-worker --help`)")
      ->type_name("DEVICE");
  command->add_flag("--simulate", options->simulate, "For the cluster's simulated workers");
  command
      ->add_option("--svg", options->svg,
                   "Draw the schedule with its predicted times here, too; - is stdout, and then "
                   "nothing else goes there")
      ->type_name("FILE");
  command
      ->add_option("--link", options->link,
                   "What links between such workers carry: 1Gbit/s, or with a latency: "
                   "1Gbit/s,1ms; default: 10Gbit/s,200us")
      ->needs("--workers")
      ->type_name("RATE[,LATENCY]");
  AddClusterOptions(command, line);
  AddOutputOption(command, line);
  command->callback([line, options] {
    line->action = [line, options](const Environment& environment) {
      return ShowPlan(*line, *options, environment);
    };
  });
}

}  // namespace headrace
