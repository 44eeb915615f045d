// A running job moves to more workers, or better ones, at a checkpoint (recovery.elastic).
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "coordinator/job_machine.h"
#include "coordinator/suited_workers.h"

namespace headrace {
namespace {

std::string NamesOf(const std::vector<v1::WorkerInfo>& workers) {
  return absl::StrJoin(workers, ",", [](std::string* text, const v1::WorkerInfo& worker) {
    absl::StrAppend(text, worker.name(), "#", worker.instance());
  });
}

bool MayMove(const JobRun& run) {
  const v1::RecoverySpec& spec = run.job().spec().recovery();
  return run.running() && !run.generates() && !run.leaves() && spec.elastic() != v1::SWITCH_OFF &&
         spec.restart() != v1::SWITCH_OFF;
}

}  // namespace

void JobMachine::ConsiderMoves(Turn turn) {
  for (auto& [id, run] : running_) {
    // Who waits in the queue comes first.
    if (!MayMove(*run) || blockers_[run->simulates()] != nullptr) continue;
    const Infos free = Preferred(*run, SuitedWorkers(workers_.Free(), run->simulates()));
    Move& move = moves_[id];
    if (free.empty() || move.latest != absl::InfiniteFuture()) continue;
    if (turn.now < move.made + kMoveTime) {
      WakeAt(move.made + kMoveTime);
      continue;
    }
    const std::string considered = absl::StrCat(run->job().generation(), ",", NamesOf(free));
    if (considered == move.considered) continue;
    move.considered = considered;
    const std::string why = WhyMove(*run, free);
    if (why.empty()) continue;
    move.latest = turn.now + kMoveTime;
    run->Note(absl::StrCat("leaves its workers at the next checkpoint, in ",
                           absl::FormatDuration(kMoveTime), " at the latest, ", why),
              turn);
  }
}

void JobMachine::MakeMoves(Turn turn) {
  for (auto& [id, move] : moves_) {
    if (move.latest == absl::InfiniteFuture()) continue;
    const auto it = running_.find(id);
    if (it == running_.end() || !MayMove(*it->second)) {
      move.latest = absl::InfiniteFuture();
      continue;
    }
    JobRun& run = *it->second;
    if (turn.now < move.latest && !run.CheckpointDue(turn.now)) continue;
    move.latest = absl::InfiniteFuture();
    // The workers may have gone since, or another job may have taken them.
    const std::string why =
        WhyMove(run, Preferred(run, SuitedWorkers(workers_.Free(), run.simulates())));
    if (why.empty()) {
      run.Note("does not move: the workers for it are gone", turn);
      continue;
    }
    move.made = turn.now;
    run.Leave(why, turn);
  }
}

std::string JobMachine::WhyMove(const JobRun& run, const Infos& free) {
  const v1::Job& job = run.job();
  Infos own;
  for (const v1::Placement& each : run.Placement()) {
    const WorkerSlot* slot = workers_.Find(each.worker(), each.instance());
    if (slot != nullptr) own.push_back(slot->info);
  }
  Infos all = own;
  all.insert(all.end(), free.begin(), free.end());
  const int64_t asked = job.spec().pipeline().stages();
  const bool short_of_stages = asked > job.plan().stages();
  absl::StatusOr<v1::Plan> better = PlanOn(run, all, Stages::kAsked);
  if (!better.ok() && short_of_stages) better = PlanOn(run, all, Stages::kAny);
  if (!better.ok()) return "";
  std::vector<std::string> names;
  for (const v1::StagePlan& stage : better->stage()) names.push_back(stage.worker());
  const std::string onto = absl::StrCat("to move onto ", absl::StrJoin(names, ", "));
  if (short_of_stages && better->stages() > job.plan().stages()) {
    return absl::StrCat(onto, ", ", better->stages(), " stages instead of ", job.plan().stages());
  }
  const absl::StatusOr<v1::Plan> present =
      PlanOn(run, own, short_of_stages ? Stages::kAny : Stages::kAsked);
  if (!present.ok() || better->step_s() > (1 - kMoveGain) * present->step_s()) return "";
  return absl::StrFormat("%s, where a step should take %.3g s instead of %.3g s", onto,
                         better->step_s(), present->step_s());
}

}  // namespace headrace
