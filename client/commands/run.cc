#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "client/commands/command.h"
#include "client/commands/local_options.h"
#include "client/commands/sampling.h"
#include "client/render/job.h"
#include "client/render/json.h"
#include "client/render/progress.h"
#include "client/submission.h"
#include "common/status.h"

namespace headrace {
namespace {

struct RunOptions {
  std::string file, from;
  LocalOptions local;
  SamplingOptions sampling;
};

// What can be told before anything is started.
absl::Status CheckRun(const RunOptions& options, const JobFile& file) {
  if (file.spec.pipeline().stages() > options.local.workers) {
    return file.Locate(absl::InvalidArgumentError(
        absl::StrCat("pipeline.stages: ", file.spec.pipeline().stages(), "; expected at most ",
                     options.local.workers, ", a worker a stage (--workers)")));
  }
  if (!options.sampling.wanted()) return absl::OkStatus();
  if (Simulates(options.local)) {
    return absl::InvalidArgumentError(
        "--prompt: a simulation trains nothing to generate from; leave it or --device sim out");
  }
  return CheckSampling(options.sampling, file.spec);
}

// Why a program of the cluster was given up. Thread-safe.
class GivenUp {
 public:
  void Set(const absl::Status& why) {
    absl::MutexLock lock(&mu_);
    why_ = why;
  }
  absl::Status why() const {
    absl::MutexLock lock(&mu_);
    return why_;
  }

 private:
  mutable absl::Mutex mu_;
  absl::Status why_ ABSL_GUARDED_BY(mu_);
};

// The whole job once it has ended. A program that ends is started again, the job recovers; if one
// is given up, that is the error.
absl::StatusOr<v1::Job> Follow(LocalCluster* cluster, const std::string& job, absl::Time deadline,
                               GivenUp* given_up, const Environment& environment) {
  cluster->Keep([=](const absl::Status& why) {
    given_up->Set(why);
    cluster->coordinator()->CancelJob(job).IgnoreError();  // else it would wait for ever
  });
  Progress progress(environment.console);
  WaitOptions wait;
  wait.deadline = deadline;
  wait.interrupt = environment.interrupt;
  wait.say = [&](const std::string& line) { progress.Say(line); };
  wait.check = [=] { return given_up->why(); };
  const absl::StatusOr<v1::Job> ended = cluster->coordinator()->FollowJob(job, wait, &progress);
  if (!ended.ok() || ended->state() != v1::JOB_STATE_DONE) {
    HEADRACE_RETURN_IF_ERROR(given_up->why());
  }
  if (!ended.ok()) return ended;
  return cluster->coordinator()->GetJobAndSteps(ended->id(), wait);
}

// Cancels what does not end by itself, so that the workers go down in order.
absl::Status GiveUp(LocalCluster* cluster, const std::string& job, const absl::Status& why) {
  if (!absl::IsCancelled(why) && !absl::IsDeadlineExceeded(why)) return why;
  cluster->coordinator()->CancelJob(job).IgnoreError();
  return Annotate(why, absl::StrCat("job ", job, " cancelled"));
}

absl::Status Finish(LocalCluster* cluster, const v1::Job& job, const CommandLine& line,
                    const RunOptions& options, absl::Time deadline,
                    const Environment& environment) {
  const Console& console = environment.console;
  const bool done = job.state() == v1::JOB_STATE_DONE;
  if (line.format() == Format::kText && done) *console.out << RenderOutcome(job) << "\n";
  if (done && options.sampling.wanted()) {
    // For programs stdout holds the description alone.
    std::ostream* out = line.format() == Format::kText ? console.out : console.err;
    HEADRACE_RETURN_IF_ERROR(GenerateText(cluster->coordinator(), job, options.sampling, deadline,
                                          Format::kText, out, environment));
  }
  if (line.format() != Format::kText) *console.out << Print(ToJson(job), line.format());
  return OutcomeOf(job);
}

absl::Status Run(const CommandLine& line, const RunOptions& options,
                 const Environment& environment) {
  HEADRACE_ASSIGN_OR_RETURN(const absl::Time deadline, line.Deadline());
  FromCheckpoint from;
  if (!options.from.empty()) {
    HEADRACE_ASSIGN_OR_RETURN(from, ParseFrom(options.from));
  }
  HEADRACE_ASSIGN_OR_RETURN(const JobFile file, ReadJobFile(options.file));
  HEADRACE_RETURN_IF_ERROR(CheckRun(options, file));
  HEADRACE_ASSIGN_OR_RETURN(const LocalClusterOptions cluster_options,
                            ToClusterOptions(options.local, environment));
  HEADRACE_ASSIGN_OR_RETURN(const StateDir state, StateDir::Open(line.state_dir));
  HEADRACE_ASSIGN_OR_RETURN(const PreparedDataset dataset, PrepareDataset(file, state.datasets()));
  // From here on Ctrl-C means: cancel the job, stop the processes, then end.
  const Interrupt::Listener listener(environment.interrupt, [] {});
  GivenUp given_up;  // outlives the cluster, whose thread sets it
  HEADRACE_ASSIGN_OR_RETURN(const auto cluster,
                            LocalCluster::Start(state, cluster_options, environment.interrupt));
  v1::JobOptions job_options;
  job_options.set_simulate(Simulates(options.local));
  HEADRACE_ASSIGN_OR_RETURN(
      const v1::SubmitJobResponse submitted,
      Submit(cluster->coordinator(), file, dataset, job_options, from, environment));
  const absl::StatusOr<v1::Job> job =
      Follow(cluster.get(), submitted.job_id(), deadline, &given_up, environment);
  if (!job.ok()) return GiveUp(cluster.get(), submitted.job_id(), job.status());
  return Finish(cluster.get(), *job, line, options, deadline, environment);
}

}  // namespace

void AddRun(CLI::App* app, CommandLine* line) {
  CLI::App* command = app->add_subcommand(
      "run", "Train a job on this machine with a coordinator and workers of its own");
  const auto options = std::make_shared<RunOptions>();
  command->add_option("file", options->file, "Job file (docs/job-file.md)")
      ->required()
      ->type_name("FILE");
  AddFromOption(command, &options->from);
  AddLocalOptions(command, &options->local);
  AddSamplingOptions(command, &options->sampling);
  AddStateDirOption(command, line);
  AddOutputOption(command, line);
  AddTimeoutOption(command, line, "Cancel the job after this long (exit code 124)");
  command->callback([line, options] {
    line->action = [line, options](const Environment& environment) {
      return Run(*line, *options, environment);
    };
  });
}

}  // namespace headrace
