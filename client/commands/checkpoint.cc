#include "absl/strings/str_cat.h"
#include "client/commands/command.h"
#include "client/render/job.h"
#include "client/render/json.h"
#include "client/render/recovery.h"
#include "common/flags.h"
#include "common/status.h"

namespace headrace {
namespace {

struct CheckpointOptions {
  std::string job;
  bool no_wait = false;
};

absl::StatusOr<v1::CheckpointJobResponse> AskForCheckpoint(Coordinator* coordinator,
                                                           const std::string& job) {
  v1::CheckpointJobRequest request;
  request.set_job(job);
  return coordinator->Call(&v1::CoordinatorService::Stub::CheckpointJob, request);
}

// The first whole one after a step; null: none yet.
const v1::Checkpoint* FirstAfter(const v1::Job& job, int64_t step) {
  for (const v1::Checkpoint& each : job.checkpoints()) {
    if (each.step() > step && each.damaged().empty()) return &each;
  }
  return nullptr;
}

// Whether the one that was asked for is there. A recovery forgets what was asked for, so a new
// generation is asked again.
class CheckpointWait {
 public:
  CheckpointWait(Coordinator* coordinator, v1::CheckpointJobResponse asked)
      : coordinator_(coordinator), asked_(std::move(asked)) {}

  absl::StatusOr<bool> Look() {
    HEADRACE_ASSIGN_OR_RETURN(const v1::Job job, coordinator_->GetJob(asked_.job_id()));
    if (const v1::Checkpoint* found = FirstAfter(job, asked_.after_step())) {
      checkpoint_ = *found;
      return true;
    }
    if (HasEnded(job.state()) || job.state() == v1::JOB_STATE_PAUSED) {
      return absl::AbortedError(absl::StrCat(
          "job ", job.id(), " (", job.name(), ") stopped before a checkpoint after step ",
          asked_.after_step(), " was whole: ", StateWord(job.state()),
          job.message().empty() ? "" : ", ", job.message()));
    }
    if (generation_ < 0) generation_ = job.generation();
    if (job.state() == v1::JOB_STATE_RUNNING && job.generation() != generation_) {
      // Not yet able to: asked again at the next look.
      if (const auto again = AskForCheckpoint(coordinator_, job.id()); again.ok()) {
        asked_ = *again;
        generation_ = job.generation();
      }
    }
    return false;
  }

  const v1::Checkpoint& checkpoint() const { return checkpoint_; }

 private:
  Coordinator* const coordinator_;
  v1::CheckpointJobResponse asked_;
  int64_t generation_ = -1;  // that was asked; −1: not known yet
  v1::Checkpoint checkpoint_;
};

absl::Status Checkpoint(const CommandLine& line, const CheckpointOptions& options,
                        const Environment& environment) {
  HEADRACE_ASSIGN_OR_RETURN(const WaitOptions wait, line.Waiting(environment));
  HEADRACE_ASSIGN_OR_RETURN(const auto coordinator, ConnectFrom(line));
  HEADRACE_ASSIGN_OR_RETURN(const v1::CheckpointJobResponse asked,
                            AskForCheckpoint(coordinator.get(), options.job));
  const Console& console = environment.console;
  if (options.no_wait) {
    if (line.format() != Format::kText) *console.out << Print(ToJson(asked), line.format());
    console.Say(absl::StrCat("asked job ", asked.job_id(), " for a checkpoint after step ",
                             asked.after_step() + 1, " or later"));
    return absl::OkStatus();
  }
  CheckpointWait look(coordinator.get(), asked);
  HEADRACE_RETURN_IF_ERROR(coordinator->WaitUntil(
      absl::StrCat("a checkpoint of job ", asked.job_id(), " after step ", asked.after_step()),
      wait, [&] { return look.Look(); }));
  const v1::Checkpoint& made = look.checkpoint();
  if (line.format() != Format::kText) {
    *console.out << Print(ToJson(made), line.format());
    return absl::OkStatus();
  }
  *console.out << made.step() << "\n";
  console.Say(absl::StrCat("job ", asked.job_id(), " has a checkpoint after step ", made.step(),
                           ", ", FormatBytes(made.size_bytes()), ", in ", WhereKept(made)));
  return absl::OkStatus();
}

}  // namespace

void AddCheckpoint(CLI::App* app, CommandLine* line) {
  CLI::App* command = app->add_subcommand(
      "checkpoint",
      "Keep a running job's state after the step at hand; prints that step on stdout");
  const auto options = std::make_shared<CheckpointOptions>();
  command->add_option("job", options->job, "Id or name")->required()->type_name("JOB");
  AddWaitOptions(command, line, &options->no_wait);
  AddClusterOptions(command, line);
  AddOutputOption(command, line);
  command->callback([line, options] {
    line->action = [line, options](const Environment& environment) {
      return Checkpoint(*line, *options, environment);
    };
  });
}

}  // namespace headrace
