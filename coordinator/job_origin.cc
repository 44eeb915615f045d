#include "coordinator/job_origin.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status.h"
#include "plan/model.h"

namespace headrace {
namespace {

// What its weights are; what is done with them (dropout) may differ.
bool SameWeights(const Model& a, const Model& b) {
  return a.family == b.family && a.layers == b.layers && a.width == b.width && a.heads == b.heads &&
         a.kv_heads == b.kv_heads && a.mlp_width == b.mlp_width && a.context == b.context &&
         a.vocabulary == b.vocabulary && a.tied == b.tied;
}

absl::StatusOr<v1::Checkpoint> FindCheckpoint(const v1::Job& from, int64_t step) {
  std::vector<std::string> sound;
  const v1::Checkpoint* found = nullptr;
  for (const v1::Checkpoint& checkpoint : from.checkpoints()) {
    if (checkpoint.step() == step && !checkpoint.damaged().empty()) {
      return absl::FailedPreconditionError(absl::StrCat("the checkpoint of step ", step, " of job ",
                                                        from.id(),
                                                        " is damaged: ", checkpoint.damaged()));
    }
    if (!checkpoint.damaged().empty()) continue;
    sound.push_back(absl::StrCat(checkpoint.step()));
    if (step == 0 || checkpoint.step() == step) found = &checkpoint;
  }
  if (found != nullptr) return *found;
  if (sound.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("job ", from.id(), " has no checkpoint"));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("job ", from.id(), " has no checkpoint of step ", step, "; it has those of ",
                   absl::StrJoin(sound, ", ")));
}

}  // namespace

absl::StatusOr<v1::Checkpoint> CheckOrigin(const v1::SubmitJobRequest& request,
                                           const StoredJob& from) {
  const v1::JobSpec& spec = request.spec();
  const std::string& id = from.job.id();
  if (request.from_step() < 0) return absl::InvalidArgumentError("from_step: expected 0 or more");
  HEADRACE_ASSIGN_OR_RETURN(const Model model, ResolveModel(spec.model()));
  HEADRACE_ASSIGN_OR_RETURN(const Model before, ResolveModel(from.job.spec().model()));
  if (!SameWeights(model, before)) {
    return absl::InvalidArgumentError(
        absl::StrCat("model: job ", id, ", whose checkpoint this begins from, trains another one"));
  }
  // Its state has what that kind of optimizer keeps.
  const v1::OptimizerSpec& now = spec.training().optimizer();
  const v1::OptimizerSpec& then = from.job.spec().training().optimizer();
  if (now.kind() != then.kind() || (now.momentum() != 0) != (then.momentum() != 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "training.optimizer: job ", id,
        ", whose checkpoint this begins from, keeps other moments; use its kind of optimizer"));
  }
  if (request.options().simulate() != from.options.simulate()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "job ", id,
        from.options.simulate() ? " was simulated: it has no weights to begin from"
                                : " was trained: a simulation begins from a simulated one"));
  }
  HEADRACE_ASSIGN_OR_RETURN(v1::Checkpoint checkpoint,
                            FindCheckpoint(from.job, request.from_step()));
  if (checkpoint.step() < spec.training().steps()) return checkpoint;
  return absl::InvalidArgumentError(absl::StrCat("training.steps: ", spec.training().steps(),
                                                 ", but the checkpoint is of step ",
                                                 checkpoint.step(), ": steps count on from it"));
}

}  // namespace headrace
