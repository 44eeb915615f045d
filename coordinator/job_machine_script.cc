#include "coordinator/job_machine_script.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/sha256.h"
#include "coordinator/small_job.h"
#include "plan/span.h"

namespace headrace {
namespace {

using Words = std::vector<std::string>;

std::string From(const Words& words, size_t first) {
  return absl::StrJoin(words.begin() + std::min(first, words.size()), words.end(), " ");
}

bool IsSimulated(const std::string& worker) { return absl::StartsWith(worker, "sim"); }

v1::Dataset MakeDataset() {
  v1::Dataset dataset;
  dataset.set_sha256(Sha256Hex("tokens"));
  dataset.set_num_tokens(100000);
  dataset.set_max_token(255);
  dataset.set_token_bytes(1);
  return dataset;
}

// A planner of one rule: one layer a stage, workers in the order given; auto takes them all.
absl::StatusOr<v1::Plan> FakePlan(const v1::JobSpec& spec, const std::vector<PlanWorker>& workers,
                                  int64_t stages) {
  if (workers.empty() || static_cast<int64_t>(workers.size()) < stages) {
    return absl::UnavailableError(
        absl::StrCat("needs ", std::max<int64_t>(1, stages), " workers, has ", workers.size()));
  }
  if (absl::StartsWith(spec.name(), "huge")) {
    return absl::FailedPreconditionError("stage 0 lacks 1 GiB");
  }
  if (stages == 0) stages = static_cast<int64_t>(workers.size());
  v1::Plan plan;
  plan.set_stages(stages);
  plan.set_step_s(1);
  for (int64_t k = 0; k < stages; ++k) {
    v1::StagePlan* stage = plan.add_stage();
    stage->set_stage(k);
    stage->set_first_layer(k);
    stage->set_end_layer(k + 1);
    stage->set_worker(workers[k].name);
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

std::string StatusText(const absl::Status& status) {
  if (status.ok()) return "OK";
  return absl::StrCat(absl::StatusCodeToString(status.code()), ": ", status.message());
}

std::string JobText(const v1::Job& job) {
  std::string text = absl::StrCat("save ", job.id(), " ", ShortName(job.state()));
  if (job.step() > 0) absl::StrAppend(&text, ", step ", job.step());
  if (!job.links().empty()) absl::StrAppend(&text, ", ", job.links_size(), " links");
  if (!job.weights().empty()) {
    absl::StrAppend(&text, ", ", job.weights_size(), " slices of step ", job.weights_step());
  }
  if (!job.flight_records().empty()) {
    absl::StrAppend(&text, ", ", job.flight_records_size(), " flight records");
  }
  if (!job.message().empty()) absl::StrAppend(&text, ": ", job.message());
  return text;
}

v1::StageTrace TraceOf(int64_t step) {
  v1::StageTrace trace;
  PackSpans({Span{v1::SPAN_KIND_FORWARD, step}}, &trace);
  return trace;
}

}  // namespace

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
  for (const Command& command : out_) {
    const auto* assign = std::get_if<AssignCall>(&command);
    if (assign == nullptr) continue;
    const v1::StageAssignment& a = assign->assignment;
    assigned_[{assign->worker, a.job_id()}] =
        Assigned{assign->instance, a.generation(), a.stage(), a.plan().stages()};
  }
}

Event MachineScript::Parse(const Words& words) {
  const std::string& verb = words[0];
  if (verb == "worker") {
    v1::WorkerInfo info;
    info.set_name(words[1]);
    info.set_instance(absl::StrCat(words[1], "#", ++instances_[words[1]]));
    if (words.size() > 4) {  // measures
      info.set_profiles_layers(true);
      info.set_device_name(words[3]);
      info.set_threads(std::atoll(words[4].c_str()));
      info.set_version("0.1");
    } else if (words.size() > 3) {
      info.set_job_id(words[3]);
    }
    if (IsSimulated(words[1])) info.mutable_sim()->set_flops_per_second(1);
    return WorkerJoined{info};
  }
  const std::string instance =
      words.size() > 1 ? absl::StrCat(words[1], "#", instances_[words[1]]) : "";
  if (verb == "lost") return WorkerLost{words[1], instance, From(words, 2)};
  if (verb == "beat" || verb == "latebeat") {
    uint64_t& number = beats_[instance];
    if (verb == "beat") ++number;
    return WorkerBeat{words[1], instance, words.size() > 2 ? JobId(words[2]) : "", number};
  }
  if (verb == "submit") return ParseSubmit(words);
  if (verb == "generate") return ParseGenerate(words);
  if (verb == "abandon") return GenerateAbandoned{generate_request_, "the client has gone"};
  if (verb == "cancel") return CancelRequested{++request_, JobId(words[1])};
  if (verb == "answer") return ParseCall(words);
  if (verb == "store") return StoreFailed{absl::ResourceExhaustedError("disk full")};
  if (verb == "again") return last_report_;
  if (verb == "wait") return TimePassed{};
  if (verb == "hashed") {
    absl::StatusOr<std::string> sha256 = Sha256Hex("weights");
    if (words[2] != "ok") sha256 = absl::NotFoundError("slice 0 is not in the store");
    return WeightsHashed{JobId(words[1]), 1, sha256};
  }
  return ParseReport(words);
}

Event MachineScript::ParseSubmit(const Words& words) {
  JobSubmitted submitted;
  submitted.request = ++request_;
  submitted.spec = SmallJob(words[1], std::atoll(words[2].c_str()));
  submitted.dataset = MakeDataset();
  submitted.options.set_hash_tensors(words.size() > 3 && words[3] == "hash");
  submitted.options.set_simulate(words.size() > 3 && words[3] == "sim");
  return submitted;
}

Event MachineScript::ParseGenerate(const Words& words) {
  GenerateSubmitted submitted;
  submitted.request = generate_request_ = ++request_;
  submitted.generate.set_max_tokens(std::atoll(words[1].c_str()));
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
  call.kind = words[1] == "assign"  ? CallKind::kAssign
              : words[1] == "start" ? CallKind::kStart
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
  if (words[4] == "traced") *call.stop.mutable_trace() = TraceOf(3);
  call.stop.set_last_heartbeat(beats_[call.instance]);
  return call;
}

Event MachineScript::ParseReport(const Words& words) {
  StageReported reported;
  reported.worker = words[1];
  v1::StageEvent& event = reported.event;
  event.set_job_id(JobId(words[2]));
  const Assigned& assigned = assigned_[{words[1], event.job_id()}];
  reported.instance = assigned.instance;
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
    event.mutable_step()->set_step(std::atoll(words[3].c_str()));
    event.mutable_step()->mutable_seconds()->set_wall(2);
    event.mutable_step()->mutable_seconds()->set_compute(1.5);
    event.mutable_step()->mutable_tensor_hashes();
    if (assigned.stage + 1 == assigned.stages) event.mutable_step()->set_loss(2.5);
    if (words.size() > 4) *event.mutable_trace() = TraceOf(event.step().step());
  } else if (words[0] == "finished") {
    event.mutable_finished();
    if (!IsSimulated(words[1])) {
      v1::WeightsSlice* slice = event.mutable_finished()->mutable_weights();
      slice->set_first_layer(assigned.stage);
      slice->set_end_layer(assigned.stage + 1);
      slice->set_sha256(Sha256Hex(words[1]));
      slice->set_size_bytes(100);
    }
    event.mutable_finished()->set_weights_step(words.size() > 3 ? 1 : 2);
    event.mutable_finished()->set_stop_reason(From(words, 4));
  } else if (words[0] == "failed") {
    const bool blames = words[3] == "blames";
    if (blames) event.mutable_failed()->set_blamed_worker(words[4]);
    event.mutable_failed()->set_reason(From(words, blames ? 5 : 3));
    event.mutable_failed()->mutable_flight_record()->add_entries("what failed");
  } else if (words[0] == "token") {
    event.set_token(std::atoll(words[3].c_str()));
  } else {
    event.set_log(From(words, 3));
  }
  return reported;
}

void MachineScript::Restore(const Words& words) {
  StoredJob stored;
  stored.job.set_id(words[1]);
  *stored.job.mutable_spec() = SmallJob("restored", 0);
  stored.job.set_state(words[2] == "QUEUED" ? v1::JOB_STATE_QUEUED : v1::JOB_STATE_RUNNING);
  stored.job.set_step(std::atoll(words[3].c_str()));
  machine_.Restore({stored}, now_, &out_);
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

std::string MachineScript::Text(const Command& command) {
  if (const auto* c = std::get_if<AssignCall>(&command)) {
    const v1::StageAssignment& a = c->assignment;
    return absl::StrFormat("assign %s: %s/%d stage %d of %d%s", c->worker, ShortId(a.job_id()),
                           a.generation(), a.stage(), a.peers_size(),
                           a.has_generate() ? ", generate" : "");
  }
  if (const auto* c = std::get_if<StartCall>(&command)) {
    return absl::StrFormat("start %s: %s/%d", c->worker, ShortId(c->job_id), c->generation);
  }
  if (const auto* c = std::get_if<StopCall>(&command)) {
    return absl::StrFormat("stop %s: %s/%d, %s", c->worker, ShortId(c->job_id), c->generation,
                           c->reason);
  }
  if (const auto* c = std::get_if<ProfileCall>(&command)) {
    return absl::StrCat("profile ", c->worker, ": ", c->request.job_id(), " layers ",
                        absl::StrJoin(c->request.layers(), " "));
  }
  if (const auto* c = std::get_if<CancelProfile>(&command)) {
    return absl::StrCat("cancel profile ", c->worker, ": ", c->job_id);
  }
  if (const auto* c = std::get_if<SaveLayerCost>(&command)) {
    return absl::StrCat("save cost of ", c->cost.layer, " on ", c->cost.device, ": ",
                        c->cost.seconds.forward_s(), " + ", c->cost.seconds.backward_s(), " s");
  }
  if (const auto* c = std::get_if<SetServing>(&command)) {
    return absl::StrCat("serving ", c->worker, ": ",
                        c->job_id.empty() ? "nothing" : ShortId(c->job_id));
  }
  if (const auto* c = std::get_if<HashWeights>(&command)) {
    return absl::StrCat("hash ", c->job_id, ": ", c->slices.size(), " slices");
  }
  if (const auto* c = std::get_if<SaveJob>(&command)) return JobText(c->job);
  if (const auto* c = std::get_if<SaveStep>(&command)) {
    return absl::StrCat("save ", c->job_id, " step ", c->step.step(), ", loss ", c->step.loss(),
                        ", bubble ", c->step.bubble());
  }
  if (const auto* c = std::get_if<SaveEvent>(&command)) {
    return absl::StrCat("event ", c->job_id, ": ", c->event.source(), ": ", c->event.text());
  }
  if (const auto* c = std::get_if<SaveHashes>(&command)) {
    return absl::StrCat("hashes ", c->job_id, ": step ", c->hashes.step(), " stage ",
                        c->hashes.stage());
  }
  if (const auto* c = std::get_if<KeepTrace>(&command)) {
    return absl::StrCat("keep trace of ", c->job_id, ": stage ", c->stage, ", step ",
                        c->trace.last_step());
  }
  if (const auto* c = std::get_if<Reply>(&command)) {
    std::string text = absl::StrCat("reply ", c->request, ": ", StatusText(c->status));
    if (!c->job_id.empty()) absl::StrAppend(&text, ", ", c->job_id);
    if (!c->message.empty()) absl::StrAppend(&text, ", ", c->message);
    return text;
  }
  if (const auto* c = std::get_if<EmitToken>(&command)) return absl::StrCat("token ", c->token);
  return absl::StrCat("end generate: ", StatusText(std::get<EndGenerate>(command).status));
}

}  // namespace headrace
