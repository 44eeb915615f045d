// The planner of scripts, and what they remember.
#include "coordinator/job_machine_script.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/sha256.h"
#include "coordinator/job_run_words.h"
#include "coordinator/small_job.h"
#include "plan/span.h"

namespace headrace {
namespace {

// A planner of one rule: one layer a stage, workers in the order given; auto takes them all. Twice
// the stages take half the time.
absl::StatusOr<v1::Plan> FakePlan(const v1::JobSpec& spec, const std::vector<PlanWorker>& workers,
                                  int64_t stages) {
  if (workers.empty() || static_cast<int64_t>(workers.size()) < stages) {
    return absl::UnavailableError(
        absl::StrCat("needs ", std::max<int64_t>(1, stages), " workers, has ", workers.size()));
  }
  const bool narrow = absl::StartsWith(spec.name(), "wide") && workers.size() < 2;
  if (absl::StartsWith(spec.name(), "huge") || narrow) {
    return absl::FailedPreconditionError("stage 0 lacks 1 GiB");
  }
  if (stages == 0) stages = static_cast<int64_t>(workers.size());
  v1::Plan plan;
  plan.set_stages(stages);
  plan.set_micro_batches(2);
  plan.set_step_s(2.0 / static_cast<double>(stages));
  for (int64_t k = 0; k < stages; ++k) {
    v1::StagePlan* stage = plan.add_stage();
    stage->set_stage(k);
    stage->set_first_layer(k);
    stage->set_end_layer(k + 1);
    stage->set_worker(workers[k].name);
    stage->set_forward_s(0.25);
    stage->set_backward_s(0.5);
    stage->set_cost_source(workers[k].measured.size() == 3 ? v1::COST_SOURCE_MEASURED
                           : workers[k].measured.empty()   ? v1::COST_SOURCE_FLOPS
                                                           : v1::COST_SOURCE_MIXED);
  }
  return plan;
}

PlanFunctions FakePlanner() {
  PlanFunctions plan;
  plan.train = [](const v1::JobSpec& spec, const v1::Dataset*, const std::vector<PlanWorker>& w,
                  Advice) { return FakePlan(spec, w, spec.pipeline().stages()); };
  plan.generate = [](const v1::JobSpec& spec, const std::vector<PlanWorker>& w) {
    return FakePlan(spec, w, 1);
  };
  plan.layers = [](const v1::JobSpec& spec) -> absl::StatusOr<std::vector<DistinctLayer>> {
    if (!absl::StartsWith(spec.name(), "heavy")) return std::vector<DistinctLayer>();
    return std::vector<DistinctLayer>{{LayerKind::kEmbedding, 0, "embedding"},
                                      {LayerKind::kGpt2Block, 1, "block"},
                                      {LayerKind::kHead, 5, "head"}};
  };
  return plan;
}

}  // namespace

std::string ScriptSliceHash(const std::string& job_id, int64_t step, int64_t first_layer) {
  return Sha256Hex(absl::StrCat(job_id, "/", step, "/", first_layer));
}

v1::WeightsSlice ScriptSlice(const std::string& job_id, int64_t step, int64_t first_layer) {
  v1::WeightsSlice slice;
  slice.set_first_layer(first_layer);
  slice.set_end_layer(first_layer + 1);
  slice.set_sha256(ScriptSliceHash(job_id, step, first_layer));
  slice.set_size_bytes(1 << 20);
  return slice;
}

bool IsSimulatedName(const std::string& worker) { return absl::StartsWith(worker, "sim"); }

v1::StageTrace ScriptTrace(int64_t step) {
  v1::StageTrace trace;
  PackSpans({Span{v1::SPAN_KIND_FORWARD, step}}, &trace);
  return trace;
}

MachineScript::MachineScript() : machine_(FakePlanner(), 0) {}

std::string MachineScript::Run(const std::string& script) {
  std::string transcript;
  for (const std::string& line : Words(absl::StrSplit(script, '\n'))) {
    if (line.empty() || absl::StartsWith(line, "#")) {
      absl::StrAppend(&transcript, line, "\n");
      continue;
    }
    if (!absl::StartsWith(line, "> ")) continue;
    absl::StrAppend(&transcript, line, "\n");
    out_.clear();
    Do(absl::StrSplit(line.substr(2), ' ', absl::SkipEmpty()));
    for (const Command& command : out_) absl::StrAppend(&transcript, "  ", Text(command), "\n");
  }
  // The split makes an empty line of the last newline.
  if (absl::EndsWith(script, "\n")) transcript.pop_back();
  return transcript;
}

void MachineScript::Do(const Words& words) {
  if (words[0] == "restore") {
    Restore(words);
    return;
  }
  if (words[0] == "wait") now_ += absl::Seconds(std::atof(words[1].c_str()));
  const Event event = Parse(words);
  if (std::holds_alternative<StageReported>(event)) last_report_ = event;
  machine_.Handle(event, now_, &out_);
  for (const Command& command : out_) Remember(command);
}

void MachineScript::Remember(const Command& command) {
  if (const auto* assign = std::get_if<AssignCall>(&command)) {
    const v1::StageAssignment& a = assign->assignment;
    Assigned& now = assigned_[{assign->worker, a.job_id()}];
    assigned_before_[{assign->worker, a.job_id()}] = now;
    now = Assigned{assign->instance, a.generation(), a.stage(), a.plan().stages()};
  } else if (const auto* job = std::get_if<SaveJob>(&command)) {
    StoredJob& stored = stored_[job->job.id()];
    const v1::Job before = stored.job;
    stored = StoredJob{job->job, job->options};
    *stored.job.mutable_checkpoints() = before.checkpoints();  // tables of their own
    *stored.job.mutable_steps() = before.steps();
  } else if (const auto* step = std::get_if<SaveStep>(&command)) {
    *stored_[step->job_id].job.add_steps() = step->step;
  } else if (const auto* save = std::get_if<SaveCheckpoint>(&command)) {
    auto* checkpoints = stored_[save->job_id].job.mutable_checkpoints();
    const auto same = std::find_if(checkpoints->begin(), checkpoints->end(), [&](const auto& each) {
      return each.step() == save->checkpoint.step();
    });
    *(same == checkpoints->end() ? checkpoints->Add() : &*same) = save->checkpoint;
  } else if (const auto* drop = std::get_if<DropCheckpoints>(&command)) {
    auto* checkpoints = stored_[drop->job_id].job.mutable_checkpoints();
    for (const int64_t step : drop->steps) {
      const auto dropped = std::remove_if(checkpoints->begin(), checkpoints->end(),
                                          [&](const auto& each) { return each.step() == step; });
      checkpoints->erase(dropped, checkpoints->end());
    }
  } else if (const auto* verify = std::get_if<VerifyCheckpoint>(&command)) {
    to_verify_[{verify->job_id, verify->checkpoint.step()}] = *verify;
  }
}

void MachineScript::Restore(const Words& words) {
  StoredJob stored;
  v1::Job& job = stored.job;
  job.set_id(words[1]);
  *job.mutable_spec() = SmallJob("restored", 0);
  job.mutable_spec()->mutable_training()->set_steps(100);
  v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
  v1::JobState_Parse(absl::StrCat("JOB_STATE_", words[2]), &state);
  job.set_state(state);
  job.set_step(std::atoll(words[3].c_str()));
  for (size_t i = 4; i < words.size(); ++i) {
    if (words[i] == "recovers") job.mutable_spec()->mutable_recovery()->clear_restart();
    if (words[i] == "pausing") job.set_message(kPausing);
    if (words[i] == "on") {
      job.set_generation(1);
      const Words names = absl::StrSplit(words[i + 1], ',');
      const auto stages = static_cast<int64_t>(names.size());
      std::vector<PlanWorker> workers(names.size());
      for (int64_t k = 0; k < stages; ++k) {
        workers[k].name = names[k];
        v1::Placement* placement = job.add_placement();
        placement->set_worker(names[k]);
        placement->set_instance(absl::StrCat(names[k], "#1"));
        assigned_[{names[k], words[1]}] = Assigned{placement->instance(), 1, k, stages};
      }
      *job.mutable_plan() = *FakePlan(job.spec(), workers, stages);
    }
    if (words[i] == "checkpoint") {
      v1::Checkpoint* checkpoint = job.add_checkpoints();
      checkpoint->set_step(std::atoll(words[i + 1].c_str()));
      checkpoint->set_generation(1);
      for (const int layer : {0, 1}) {
        *checkpoint->add_slices() = ScriptSlice(words[1], checkpoint->step(), layer);
      }
    }
  }
  stored_[words[1]] = stored;
  machine_.Restore({stored}, now_, &out_);
  for (const Command& command : out_) Remember(command);
}

std::string MachineScript::JobId(const std::string& short_id) const {
  const auto it = generates_.find(short_id);
  return it == generates_.end() ? short_id : it->second;
}

// Ids of generate requests hold the time; here they are counted.
std::string MachineScript::ShortId(const std::string& job_id) {
  if (!absl::StartsWith(job_id, "generate-")) return job_id;
  for (const auto& [name, id] : generates_) {
    if (id == job_id) return name;
  }
  const std::string name = absl::StrCat("generate-", generates_.size() + 1);
  generates_[name] = job_id;
  return name;
}

}  // namespace headrace
