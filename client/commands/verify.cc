#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/commands/command.h"
#include "client/hash_comparison.h"
#include "client/render/json.h"
#include "common/status.h"

namespace headrace {
namespace {

struct VerifyOptions {
  std::string job;
  int64_t steps = 3;
};

constexpr size_t kDifferencesShown = 10;
constexpr size_t kLongestName = 63;  // plan/job_check.cc

// One replay, watched to its end. Cancelled if the watching ends early.
absl::StatusOr<HashRecord> Replay(Coordinator* coordinator, const v1::Job& job, int64_t stages,
                                  int64_t steps, const WaitOptions& wait,
                                  const Environment& environment) {
  v1::SubmitJobRequest request;
  *request.mutable_spec() = job.spec();
  const std::string suffix = absl::StrCat("-verify-k", stages);
  request.mutable_spec()->set_name(
      absl::StrCat(job.spec().name().substr(0, kLongestName - suffix.size()), suffix));
  request.mutable_spec()->mutable_training()->set_steps(steps);
  request.mutable_spec()->mutable_pipeline()->set_stages(stages);
  // A replay is short, and what goes wrong in it is to be seen.
  request.mutable_spec()->mutable_checkpoint()->Clear();
  request.mutable_spec()->mutable_checkpoint()->set_every_minutes(0);
  request.mutable_spec()->mutable_checkpoint()->set_replicate(v1::REPLICATION_OFF);
  request.mutable_spec()->mutable_recovery()->Clear();
  request.mutable_spec()->mutable_recovery()->set_restart(v1::SWITCH_OFF);
  *request.mutable_dataset() = job.dataset();
  request.mutable_options()->set_hash_tensors(true);
  HEADRACE_ASSIGN_OR_RETURN(const v1::SubmitJobResponse submitted,
                            coordinator->Call(&v1::CoordinatorService::Stub::SubmitJob, request));
  environment.console.Say(absl::StrCat("replaying ", steps, steps == 1 ? " step" : " steps",
                                       " at K = ", stages, " as job ", submitted.job_id()));
  HashRecord record;
  const absl::StatusOr<v1::Job> ended = coordinator->FollowJob(submitted.job_id(), wait, &record);
  if (!ended.ok()) {
    coordinator->CancelJob(submitted.job_id()).IgnoreError();
    return ended.status();
  }
  HEADRACE_RETURN_IF_ERROR(OutcomeOf(*ended));
  return record;
}

Json ComparisonToJson(const HashComparison& comparison, int64_t stages) {
  Json differences = Json::array();
  for (const HashDifference& difference : comparison.differences) {
    differences.push_back(
        {{"step", difference.step}, {"tensor", difference.name}, {"what", difference.what}});
  }
  return {{"stages", {1, stages}},
          {"steps", comparison.steps},
          {"tensors", comparison.tensors},
          {"differing", comparison.differences.size()},
          {"differences", std::move(differences)}};
}

absl::Status Report(const HashComparison& comparison, int64_t stages, const CommandLine& line,
                    const Console& console) {
  const std::string runs = absl::StrCat("K = 1 and K = ", stages);
  if (line.format() != Format::kText) {
    *console.out << Print(ComparisonToJson(comparison, stages), line.format());
  }
  if (comparison.tensors == 0) {
    return absl::AbortedError("the replays reported no tensors: nothing was compared");
  }
  if (comparison.differences.empty()) {
    if (line.format() == Format::kText) {
      *console.out << "identical: " << comparison.tensors << " tensors of " << comparison.steps
                   << (comparison.steps == 1 ? " step" : " steps") << ", bit for bit, at " << runs
                   << "\n";
    }
    return absl::OkStatus();
  }
  const HashDifference& first = comparison.differences[0];
  const size_t shown = std::min(kDifferencesShown, comparison.differences.size());
  for (size_t i = 0; i < shown && line.format() == Format::kText; ++i) {
    const HashDifference& d = comparison.differences[i];
    *console.out << "step " << d.step << ": " << Printable(d.name) << " " << d.what << "\n";
  }
  return absl::AbortedError(absl::StrCat(
      comparison.differences.size(), " of ", comparison.tensors, " tensors differ between ", runs,
      "; the first is ", first.name, " in step ", first.step, ", which ", first.what));
}

// A replay that had to wait for workers to come would wait in silence.
absl::Status CheckWorkers(Coordinator* coordinator, int64_t stages) {
  HEADRACE_ASSIGN_OR_RETURN(
      const v1::ListWorkersResponse response,
      coordinator->Call(&v1::CoordinatorService::Stub::ListWorkers, v1::ListWorkersRequest()));
  int64_t living = 0;
  for (const v1::WorkerInfo& worker : response.workers())
    living += worker.alive() && !worker.has_sim();
  if (living >= stages) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the job's plan has ", stages, " stages, and ",
                                                    living, " workers are there; ",
                                                    "start more, then verify again"));
}

absl::Status Verify(const CommandLine& line, const VerifyOptions& options,
                    const Environment& environment) {
  HEADRACE_ASSIGN_OR_RETURN(WaitOptions wait, line.Following(environment));
  wait.say = [&](const std::string& text) { environment.console.Say(text); };
  HEADRACE_ASSIGN_OR_RETURN(const auto coordinator, ConnectFrom(line));
  HEADRACE_ASSIGN_OR_RETURN(const v1::Job job, coordinator->GetJob(options.job));
  if (!job.has_plan()) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", job.id(), " (", job.name(), ") has no plan yet to replay"));
  }
  if (job.plan().stage_size() > 0 && job.plan().stage(0).has_sim()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", job.id(), " (", job.name(), ") was simulated: it has no tensors to compare"));
  }
  if (job.spec().pipeline().boundary_dtype() == v1::BOUNDARY_DTYPE_BF16) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", job.id(), " (", job.name(),
        ") has pipeline.boundary_dtype: bf16, whose numbers "
        "depend on where stages begin, so K = 1 cannot be compared; verify it with fp32"));
  }
  const int64_t stages = job.plan().stages();
  HEADRACE_RETURN_IF_ERROR(CheckWorkers(coordinator.get(), stages));
  const int64_t steps = std::min(options.steps, job.spec().training().steps());
  const auto replay = [&](int64_t k) {
    return Replay(coordinator.get(), job, k, steps, wait, environment);
  };
  const absl::StatusOr<HashRecord> single = replay(1);
  if (!single.ok()) return Annotate(single.status(), "replay at K = 1");
  const absl::StatusOr<HashRecord> planned = replay(stages);
  if (!planned.ok()) return Annotate(planned.status(), absl::StrCat("replay at K = ", stages));
  return Report(
      Compare(*single, "the run at K = 1", *planned, absl::StrCat("the run at K = ", stages)),
      stages, line, environment.console);
}

}  // namespace

void AddVerify(CLI::App* app, CommandLine* line) {
  CLI::App* command = app->add_subcommand(
      "verify", "Replay a job's first steps at K = 1 and at its plan's K and compare every tensor");
  const auto options = std::make_shared<VerifyOptions>();
  command->add_option("job", options->job, "Id or name")->required()->type_name("JOB");
  command->add_option("--steps", options->steps, "How many steps")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->type_name("N");
  AddClusterOptions(command, line);
  AddOutputOption(command, line);
  AddTimeoutOption(command, line, "Give up and cancel the replay after this long (exit code 124)");
  command->callback([line, options] {
    line->action = [line, options](const Environment& environment) {
      return Verify(*line, *options, environment);
    };
  });
}

}  // namespace headrace
