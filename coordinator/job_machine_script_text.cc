// What the machine commands, as text.
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "coordinator/job_machine_script.h"

namespace headrace {
namespace {

constexpr double kBegin_s = 1'000'000;  // the script's clock

std::string StatusText(const absl::Status& status) {
  if (status.ok()) return "OK";
  return absl::StrCat(absl::StatusCodeToString(status.code()), ": ", status.message());
}

std::string Ranges(const google::protobuf::RepeatedPtrField<v1::StepRange>& ranges) {
  return absl::StrJoin(ranges, " ", [](std::string* text, const v1::StepRange& range) {
    absl::StrAppend(text, range.first(), "-", range.last());
  });
}

std::string RecoveryText(const v1::Recovery& recovery) {
  std::string text =
      absl::StrCat(", recovery ", recovery.generation(), " (lost step ", recovery.lost_step());
  const auto add = [&](const char* what, double unix_s) {
    if (unix_s > 0) absl::StrAppendFormat(&text, ", %s %.4g", what, unix_s - kBegin_s);
  };
  add("failed", recovery.failed_unix_s());
  add("detected", recovery.detected_unix_s());
  add("planned", recovery.planned_unix_s());
  add("loaded", recovery.loaded_unix_s());
  add("replayed", recovery.replayed_unix_s());
  if (!recovery.source().empty()) {
    absl::StrAppend(&text, ", from step ", recovery.from_step(), ", ", recovery.source());
  }
  return text + ")";
}

std::string AssignText(const AssignCall& call, const std::string& job_id) {
  const v1::StageAssignment& a = call.assignment;
  std::string text =
      absl::StrFormat("assign %s: %s/%d stage %d of %d%s", call.worker, job_id, a.generation(),
                      a.stage(), a.peers_size(), a.has_generate() ? ", generate" : "");
  if (a.start_step() == 0 && a.skipped().empty()) return text;
  absl::StrAppend(&text, ", after step ", a.start_step());
  for (const v1::WeightsSlice& slice : a.weights()) {
    absl::StrAppend(&text, ", layer ", slice.first_layer(), " at ",
                    slice.holder_addresses().empty()
                        ? "the store"
                        : absl::StrJoin(slice.holder_addresses(), " "));
  }
  if (!a.skipped().empty()) absl::StrAppend(&text, ", without ", Ranges(a.skipped()));
  if (!a.recent_losses().empty()) {
    absl::StrAppend(&text, ", losses ", absl::StrJoin(a.recent_losses(), " "));
  }
  return text;
}

std::string ReplyText(const Reply& reply) {
  std::string text = absl::StrCat("reply ", reply.request, ": ", StatusText(reply.status));
  if (!reply.job_id.empty()) absl::StrAppend(&text, ", ", reply.job_id);
  if (reply.step > 0) absl::StrAppend(&text, ", step ", reply.step);
  if (!reply.message.empty()) absl::StrAppend(&text, ", ", reply.message);
  return text;
}

}  // namespace

std::string MachineScript::JobText(const v1::Job& job) {
  std::string text = absl::StrCat("save ", job.id(), " ", ShortName(job.state()));
  if (job.step() > 0) absl::StrAppend(&text, ", step ", job.step());
  if (!job.links().empty()) absl::StrAppend(&text, ", ", job.links_size(), " links");
  if (!job.weights().empty()) {
    absl::StrAppend(&text, ", ", job.weights_size(), " slices of step ", job.weights_step());
  }
  if (!job.flight_records().empty()) {
    absl::StrAppend(&text, ", ", job.flight_records_size(), " flight records");
  }
  if (!job.skipped().empty()) absl::StrAppend(&text, ", without ", Ranges(job.skipped()));
  if (!job.recoveries().empty()) {
    const std::string recovery = RecoveryText(*job.recoveries().rbegin());
    if (std::exchange(recoveries_[job.id()], recovery) != recovery) text += recovery;
  }
  if (!job.message().empty()) absl::StrAppend(&text, ": ", job.message());
  return text;
}

std::string MachineScript::Text(const Command& command) {
  if (const auto* c = std::get_if<AssignCall>(&command)) {
    return AssignText(*c, ShortId(c->assignment.job_id()));
  }
  if (const auto* c = std::get_if<StartCall>(&command)) {
    return absl::StrFormat("start %s: %s/%d", c->worker, ShortId(c->job_id), c->generation);
  }
  if (const auto* c = std::get_if<StopCall>(&command)) {
    return absl::StrFormat("stop %s: %s/%d, %s", c->worker, ShortId(c->job_id), c->generation,
                           c->reason);
  }
  if (const auto* c = std::get_if<ControlCall>(&command)) {
    return absl::StrFormat("control %s: %s/%d%s%s", c->worker, c->job_id, c->generation,
                           c->checkpoint ? " checkpoint" : "", c->leave ? " leave" : "");
  }
  if (const auto* c = std::get_if<ProfileCall>(&command)) {
    return absl::StrCat("profile ", c->worker, ": ", c->request.job_id(), " layers ",
                        absl::StrJoin(c->request.layers(), " "));
  }
  if (const auto* c = std::get_if<CancelProfile>(&command)) {
    return absl::StrCat("cancel profile ", c->worker, ": ", c->job_id);
  }
  if (const auto* c = std::get_if<SetServing>(&command)) {
    return absl::StrCat("serving ", c->worker, ": ",
                        c->job_id.empty() ? "nothing" : ShortId(c->job_id));
  }
  if (const auto* c = std::get_if<SetCordoned>(&command)) {
    return absl::StrCat("cordoned ", c->worker, ": ", c->cordoned ? "yes" : "no");
  }
  if (const auto* c = std::get_if<SaveJob>(&command)) return JobText(c->job);
  if (const auto* c = std::get_if<Reply>(&command)) return ReplyText(*c);
  if (const auto* c = std::get_if<EmitToken>(&command)) return absl::StrCat("token ", c->token);
  if (const auto* c = std::get_if<EndGenerate>(&command)) {
    return absl::StrCat("end generate: ", StatusText(c->status));
  }
  return OtherText(command);
}

// Of what a job leaves behind.
std::string MachineScript::OtherText(const Command& command) {
  if (const auto* c = std::get_if<SaveLayerCost>(&command)) {
    return absl::StrCat("save cost of ", c->cost.layer, " on ", c->cost.device, ": ",
                        c->cost.seconds.forward_s(), " + ", c->cost.seconds.backward_s(), " s");
  }
  if (const auto* c = std::get_if<HashWeights>(&command)) {
    return absl::StrCat("hash ", c->job_id, ": ", c->slices.size(), " slices");
  }
  if (const auto* c = std::get_if<VerifyCheckpoint>(&command)) {
    return absl::StrCat("verify ", c->job_id, ": step ", c->checkpoint.step(), ", ",
                        c->checkpoint.slices_size(), " slices");
  }
  if (const auto* c = std::get_if<SaveCheckpoint>(&command)) {
    const v1::Checkpoint& checkpoint = c->checkpoint;
    return absl::StrCat(
        "save checkpoint ", c->job_id, ": step ", checkpoint.step(), ", generation ",
        checkpoint.generation(), ", ", checkpoint.slices_size(), " slices",
        checkpoint.damaged().empty() ? "" : absl::StrCat(", damaged: ", checkpoint.damaged()));
  }
  if (const auto* c = std::get_if<DropCheckpoints>(&command)) {
    return absl::StrCat("drop checkpoints ", c->job_id, ": ", absl::StrJoin(c->steps, " "));
  }
  if (const auto* c = std::get_if<DropSlices>(&command)) {
    const bool all = c->before_step == std::numeric_limits<int64_t>::max();
    return absl::StrCat("drop slices ", c->job_id, ": ",
                        all ? "all" : absl::StrCat("before ", c->before_step), " on ",
                        absl::StrJoin(c->workers, " "));
  }
  if (const auto* c = std::get_if<SaveStep>(&command)) {
    return absl::StrCat("save ", c->job_id, " step ", c->step.step(), ", loss ", c->step.loss(),
                        ", bubble ", c->step.bubble(),
                        c->step.skipped().empty() ? "" : ", skipped");
  }
  if (const auto* c = std::get_if<SaveEvent>(&command)) {
    return absl::StrCat("event ", c->job_id, ": ", c->event.source(), ": ", c->event.text());
  }
  if (const auto* c = std::get_if<SaveHashes>(&command)) {
    return absl::StrCat("hashes ", c->job_id, ": step ", c->hashes.step(), " stage ",
                        c->hashes.stage());
  }
  const auto& c = std::get<KeepTrace>(command);
  return absl::StrCat("keep trace of ", c.job_id, ": stage ", c.stage, ", step ",
                      c.trace.last_step());
}

}  // namespace headrace
