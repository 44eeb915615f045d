// What a script's lines say.
#include <algorithm>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/sha256.h"
#include "coordinator/job_machine_script.h"
#include "coordinator/small_job.h"

namespace headrace {
namespace {

std::string From(const std::vector<std::string>& words, size_t first) {
  return absl::StrJoin(words.begin() + std::min(first, words.size()), words.end(), " ");
}

int64_t Number(const std::string& word) { return std::atoll(word.c_str()); }

v1::Dataset MakeDataset() {
  v1::Dataset dataset;
  dataset.set_sha256(Sha256Hex("tokens"));
  dataset.set_num_tokens(100000);
  dataset.set_max_token(255);
  dataset.set_token_bytes(1);
  return dataset;
}

}  // namespace

Event MachineScript::Parse(const Words& words) {
  const std::string& verb = words[0];
  if (verb == "worker" || verb == "back") return ParseWorker(words);
  const std::string instance =
      words.size() > 1 ? absl::StrCat(words[1], "#", instances_[words[1]]) : "";
  if (verb == "lost") return WorkerLost{words[1], instance, From(words, 2)};
  if (verb == "beat" || verb == "latebeat") {
    uint64_t& number = beats_[instance];
    if (verb == "beat") ++number;
    const bool leaves = words.back() == "leaves";
    const std::string serves = words.size() > (leaves ? 3 : 2) ? JobId(words[2]) : "";
    return WorkerBeat{words[1], instance, serves, number, leaves};
  }
  if (verb == "answer") return ParseCall(words);
  if (verb == "store") return StoreFailed{absl::ResourceExhaustedError("disk full")};
  if (verb == "again") return last_report_;
  if (verb == "wait") return TimePassed{};
  if (verb == "hashed") {
    absl::StatusOr<std::string> sha256 = Sha256Hex("weights");
    if (words[2] != "ok") sha256 = absl::NotFoundError("slice 0 is not in the store");
    return WeightsHashed{JobId(words[1]), std::max<int64_t>(1, stored_[words[1]].job.generation()),
                         sha256};
  }
  if (verb == "verified") {
    const VerifyCheckpoint& asked = to_verify_[{words[1], Number(words[2])}];
    CheckpointVerified verified{asked.job_id, asked.generation, asked.checkpoint, absl::OkStatus()};
    if (words[3] != "ok") verified.status = absl::DataLossError("slice 1 has another hash");
    return verified;
  }
  if (verb == "old") {
    const Words report(words.begin() + 1, words.end());
    return ParseReport(report, assigned_before_[{report[1], JobId(report[2])}]);
  }
  const Event request = ParseRequest(words);
  if (!std::holds_alternative<TimePassed>(request)) return request;
  return ParseReport(words, assigned_[{words[1], JobId(words[2])}]);
}

Event MachineScript::ParseWorker(const Words& words) {
  WorkerJoined joined;
  v1::WorkerInfo& info = joined.worker;
  if (words[0] == "worker") ++instances_[words[1]];
  info.set_name(words[1]);
  info.set_instance(absl::StrCat(words[1], "#", instances_[words[1]]));
  info.set_address(absl::StrCat(words[1], ":1"));
  if (IsSimulatedName(words[1])) info.mutable_sim()->set_flops_per_second(1);
  for (size_t i = 2; i < words.size(); ++i) {
    if (words[i] == "measures") {
      info.set_profiles_layers(true);
      info.set_device_name(words[i + 1]);
      info.set_threads(Number(words[i + 2]));
      info.set_version("0.1");
    }
    if (words[i] == "serves") info.set_job_id(words[i + 1]);
    if (words[i] == "stands") {
      const Assigned& assigned = assigned_[{words[1], words[i + 1]}];
      info.set_job_id(words[i + 1]);
      joined.standing.emplace();
      joined.standing->set_job_id(words[i + 1]);
      joined.standing->set_generation(assigned.generation - (words.back() == "old" ? 1 : 0));
      joined.standing->set_stage(assigned.stage);
    }
    if (words[i] == "holds") {
      v1::HeldSlice& held = joined.held.emplace_back();
      held.set_job_id(words[i + 1]);
      held.set_step(Number(words[i + 2]));
      held.set_sha256(
          ScriptSliceHash(words[i + 1], held.step(), assigned_[{words[1], words[i + 1]}].stage));
    }
  }
  return joined;
}

// TimePassed: it is none.
Event MachineScript::ParseRequest(const Words& words) {
  const std::string& verb = words[0];
  if (verb == "submit") return ParseSubmit(words);
  if (verb == "generate") return ParseGenerate(words);
  if (verb == "abandon") return GenerateAbandoned{generate_request_, "the client has gone"};
  if (verb == "cancel") return CancelRequested{++request_, JobId(words[1])};
  if (verb == "checkpoint") return CheckpointRequested{++request_, words[1]};
  if (verb == "pause") return PauseRequested{++request_, words[1]};
  if (verb == "resume") return ResumeRequested{++request_, words[1], stored_[words[1]]};
  if (verb == "cordon") return CordonRequested{++request_, words[1], true, false};
  if (verb == "uncordon") return CordonRequested{++request_, words[1], false, false};
  if (verb == "drain") return CordonRequested{++request_, words[1], true, true};
  return TimePassed{};
}

Event MachineScript::ParseSubmit(const Words& words) {
  JobSubmitted submitted;
  submitted.request = ++request_;
  submitted.spec = SmallJob(words[1], Number(words[2]));
  submitted.dataset = MakeDataset();
  v1::JobSpec& spec = submitted.spec;
  for (size_t i = 3; i < words.size(); ++i) {
    if (words[i] == "hash") submitted.options.set_hash_tensors(true);
    if (words[i] == "sim") submitted.options.set_simulate(true);
    if (words[i] == "recovers") spec.mutable_recovery()->clear_restart();
    if (words[i] == "rigid") spec.mutable_recovery()->set_elastic(v1::SWITCH_OFF);
    if (words[i] == "steps") spec.mutable_training()->set_steps(Number(words[i + 1]));
    if (words[i] == "every") spec.mutable_checkpoint()->set_every_steps(Number(words[i + 1]));
    if (words[i] == "keep") spec.mutable_checkpoint()->set_keep_last(Number(words[i + 1]));
    if (words[i] == "wider") spec.mutable_model()->set_n_embd(32);
    if (words[i] == "from") {
      const Words from = absl::StrSplit(words[i + 1], '@');
      submitted.from = stored_[from[0]];
      if (from.size() > 1) submitted.from_step = Number(from[1]);
    }
  }
  return submitted;
}

Event MachineScript::ParseGenerate(const Words& words) {
  GenerateSubmitted submitted;
  submitted.request = generate_request_ = ++request_;
  submitted.generate.set_max_tokens(Number(words[1]));
  *submitted.trained.mutable_spec() = SmallJob("trained", 2);
  submitted.trained.add_weights()->set_end_layer(6);
  return submitted;
}

void MachineScript::ParseProfile(const Words& words, CallEnded* call) {
  call->kind = CallKind::kProfile;
  call->worker = words[2];
  call->instance = absl::StrCat(words[2], "#", instances_[words[2]]);
  call->job_id = words[3];
  if (words[4] == "unavailable") call->status = absl::UnavailableError("connection refused");
  if (words[4] == "cancelled") call->status = absl::CancelledError("cancelled");
  if (!call->status.ok()) return;
  for (const int layer : {0, 1, 5}) {
    if (words[4] == "partly" && layer == 5) continue;
    v1::LayerProfile* profile = call->profile.add_profiles();
    profile->set_layer(layer);
    profile->mutable_seconds()->set_forward_s(words[4] == "absurd" ? -1 : 0.001 * (1 + layer));
    profile->mutable_seconds()->set_backward_s(0.002 * (1 + layer));
  }
  if (words[4] == "partly") call->profile.add_passed_over("layer 5 (head) would take too long");
}

Event MachineScript::ParseCall(const Words& words) {
  CallEnded call;
  if (words[1] == "profile") {
    ParseProfile(words, &call);
    return call;
  }
  call.kind = words[1] == "assign"    ? CallKind::kAssign
              : words[1] == "start"   ? CallKind::kStart
              : words[1] == "control" ? CallKind::kControl
                                      : CallKind::kStop;
  call.worker = words[2];
  call.job_id = JobId(words[3]);
  const Assigned& assigned = assigned_[{call.worker, call.job_id}];
  call.instance = assigned.instance;
  call.generation = assigned.generation;
  if (words[4] == "unavailable") call.status = absl::UnavailableError("connection refused");
  if (words[4] == "deadline") call.status = absl::DeadlineExceededError("no answer in time");
  if (words[4] == "refused") call.status = absl::FailedPreconditionError("busy with another job");
  call.stop.mutable_flight_record()->add_entries("04:53:56.1 step 12, micro-batch 3: waiting");
  call.stop.set_busy(words[4] == "busy");
  if (words[4] == "traced") *call.stop.mutable_trace() = ScriptTrace(3);
  call.stop.set_last_heartbeat(beats_[call.instance]);
  return call;
}

void MachineScript::ParseStep(const Words& words, const Assigned& assigned, v1::StageStep* step) {
  step->set_step(Number(words[3]));
  step->mutable_seconds()->set_wall(2);
  step->mutable_seconds()->set_compute(1.5);
  step->mutable_tensor_hashes();
  if (assigned.stage + 1 == assigned.stages) step->set_loss(2.5);
  if (words.size() < 6) return;
  if (words[4] == "loss") step->set_loss(std::atof(words[5].c_str()));
  if (words[4] == "takes") step->mutable_seconds()->set_compute(std::atof(words[5].c_str()));
  if (words[4] == "skipped") step->set_skipped(From(words, 5));
}

void MachineScript::ParseSnapshot(const Words& words, const Assigned& assigned,
                                  v1::StageSnapshot* snapshot) {
  snapshot->set_step(Number(words[3]));
  if (!IsSimulatedName(words[1])) {
    *snapshot->mutable_slice() = ScriptSlice(words[2], snapshot->step(), assigned.stage);
  }
  if (words.size() < 5) return;
  if (words[4] == "at") snapshot->set_holder(words[5]);
  if (words[4] == "stored") snapshot->set_in_store(true);
  if (words[4] == "failed") snapshot->set_failed(From(words, 5));
}

Event MachineScript::ParseReport(const Words& words, const Assigned& assigned) {
  StageReported reported;
  reported.worker = words[1];
  reported.instance = assigned.instance;
  v1::StageEvent& event = reported.event;
  event.set_job_id(JobId(words[2]));
  event.set_generation(assigned.generation);
  event.set_stage(assigned.stage);
  event.set_sequence(++sequence_);
  if (words[0] == "ready") {
    event.mutable_ready();
  } else if (words[0] == "connected") {
    v1::LinkInfo* link = event.mutable_connected()->add_links();
    link->set_from_stage(assigned.stage);
    link->set_to_stage(assigned.stage + 1);
    link->set_transport("shm");
  } else if (words[0] == "step") {
    ParseStep(words, assigned, event.mutable_step());
    if (words.back() == "traced") *event.mutable_trace() = ScriptTrace(event.step().step());
  } else if (words[0] == "finished") {
    event.mutable_finished();
    if (!IsSimulatedName(words[1])) {
      v1::WeightsSlice* slice = event.mutable_finished()->mutable_weights();
      slice->set_first_layer(assigned.stage);
      slice->set_end_layer(assigned.stage + 1);
      slice->set_sha256(Sha256Hex(words[1]));
      slice->set_size_bytes(100);
    }
    event.mutable_finished()->set_weights_step(words.size() > 3 ? 1 : 2);
    event.mutable_finished()->set_stop_reason(From(words, 4));
  } else if (words[0] == "failed") {
    const bool blames = words[3] == "blames", lacks = words[3] == "lacks";
    if (blames) event.mutable_failed()->set_blamed_worker(words[4]);
    if (lacks) {
      const Words slice = absl::StrSplit(words[4], '/');  // job, step, layer
      event.mutable_failed()->set_bad_slice(
          ScriptSliceHash(slice[0], Number(slice[1]), Number(slice[2])));
    }
    event.mutable_failed()->set_reason(From(words, blames || lacks ? 5 : 3));
    event.mutable_failed()->mutable_flight_record()->add_entries("what failed");
  } else if (words[0] == "snapshot") {
    ParseSnapshot(words, assigned, event.mutable_snapshot());
  } else if (words[0] == "left") {
    event.mutable_left()->set_step(Number(words[3]));
  } else if (words[0] == "rollback") {
    event.mutable_rollback()->set_bad_step(Number(words[3]));
    event.mutable_rollback()->set_reason(From(words, 4));
  } else if (words[0] == "token") {
    event.set_token(Number(words[3]));
  } else {
    event.set_log(From(words, 3));
  }
  return reported;
}

}  // namespace headrace
