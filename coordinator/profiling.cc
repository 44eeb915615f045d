#include "coordinator/profiling.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace headrace {
namespace {

std::string Describe(const v1::WorkerInfo& worker) {
  return absl::StrCat(worker.name(), " (", DeviceKey(worker), ")");
}

// Whether the seconds of a layer can be true: a worker's word must not divide by zero.
bool Plausible(const v1::LayerSeconds& seconds) {
  constexpr double kLongest = 3600;
  const auto plausible = [](double s) { return s >= 0 && s < kLongest; };  // false for NaN
  return plausible(seconds.forward_s()) && plausible(seconds.recompute_s()) &&
         plausible(seconds.backward_s()) && seconds.forward_s() + seconds.backward_s() > 0;
}

std::string SecondsText(int64_t layer, const v1::LayerSeconds& seconds) {
  return absl::StrFormat("layer %d: %.3g + %.3g ms", layer, 1e3 * seconds.forward_s(),
                         1e3 * seconds.backward_s());
}

}  // namespace

void Profiling::FillIn(const v1::JobSpec& spec, const std::vector<v1::WorkerInfo>& workers,
                       std::vector<PlanWorker>* planned) const {
  if (!layers_of_) return;
  const auto layers = layers_of_(spec);
  if (!layers.ok()) return;
  for (size_t i = 0; i < workers.size(); ++i) {
    (*planned)[i].measured = costs_.Known(workers[i], *layers);
  }
}

std::vector<std::string> Profiling::Begin(const v1::Job& job,
                                          const std::vector<v1::WorkerInfo>& free,
                                          WorkerTable* workers, Turn turn) {
  // With one stage there is nothing to balance.
  if (!layers_of_ || job.spec().pipeline().stages() == 1 || free.size() < 2) return {};
  const auto layers = layers_of_(job.spec());
  if (!layers.ok()) return {};
  const v1::TrainingSpec& training = job.spec().training();
  const bool bf16 = training.precision() == v1::PRECISION_BF16 && !training.bf16_emulate();
  // The one with the most memory of each device that this job has not tried.
  std::map<std::string, const v1::WorkerInfo*> chosen;
  for (const v1::WorkerInfo& worker : free) {
    if (!worker.profiles_layers() || (bf16 && !worker.bf16())) continue;
    const v1::WorkerInfo*& best = chosen[DeviceKey(worker)];
    if (best == nullptr || worker.memory_limit_bytes() > best->memory_limit_bytes()) {
      best = &worker;
    }
  }
  std::vector<std::string> names;
  Entry& entry = entries_[job.id()];
  for (const auto& [device, worker] : chosen) {
    std::vector<DistinctLayer> unknown = *layers;
    const std::vector<MeasuredCost> known = costs_.Known(*worker, *layers);
    std::erase_if(unknown, [&](const DistinctLayer& layer) {
      return FindCost(known, layer.kind) != nullptr;
    });
    if (unknown.empty() || !entry.tried.insert(device).second) continue;
    ProfileCall call{worker->name(), worker->instance(), worker->address(), {}};
    call.request.set_job_id(job.id());
    *call.request.mutable_spec() = job.spec();
    for (const DistinctLayer& layer : unknown) call.request.add_layers(layer.layer);
    call.request.set_budget_ms(absl::ToInt64Milliseconds(kBudget));
    turn.out->push_back(std::move(call));
    workers->Measure(workers->Find(worker->name()));
    entry.open[worker->name()] = {*worker, std::move(unknown)};
    names.push_back(worker->name());
  }
  return names;
}

bool Profiling::UnderWay(const std::string& job_id) const {
  const auto at = entries_.find(job_id);
  return at != entries_.end() && !at->second.open.empty();
}

std::optional<Profiling::News> Profiling::OnCallEnded(const CallEnded& call, WorkerTable* workers,
                                                      Turn turn) {
  if (WorkerSlot* slot = workers->Find(call.worker, call.instance)) {
    workers->Measured(slot,
                      !absl::IsUnavailable(call.status) && !absl::IsDeadlineExceeded(call.status));
  }
  const auto at = entries_.find(call.job_id);
  if (at == entries_.end()) return std::nullopt;
  const auto open = at->second.open.find(call.worker);
  if (open == at->second.open.end() || open->second.worker.instance() != call.instance) {
    return std::nullopt;
  }
  if (!call.status.ok()) {
    return Fail(&at->second, call.job_id, call.worker, std::string(call.status.message()));
  }
  News news{call.job_id, Keep(open->second, call.profile, turn)};
  at->second.open.erase(open);
  return news;
}

std::optional<Profiling::News> Profiling::OnWorkerLost(const std::string& worker,
                                                       const std::string& reason) {
  for (auto& [job_id, entry] : entries_) {
    if (entry.open.contains(worker)) return Fail(&entry, job_id, worker, reason);
  }
  return std::nullopt;
}

std::optional<Profiling::News> Profiling::Fail(Entry* entry, const std::string& job_id,
                                               const std::string& worker, const std::string& why) {
  entry->open.erase(worker);
  return News{job_id,
              absl::StrCat("could not measure layers on ", worker, ", FLOPs stand in: ", why)};
}

std::string Profiling::Keep(const OpenCall& call, const v1::ProfileLayersResponse& response,
                            Turn turn) {
  std::vector<std::string> measured;
  for (const v1::LayerProfile& profile : response.profiles()) {
    const auto layer =
        std::find_if(call.layers.begin(), call.layers.end(),
                     [&](const DistinctLayer& each) { return each.layer == profile.layer(); });
    if (layer == call.layers.end() || !Plausible(profile.seconds())) continue;
    const StoredLayerCost cost{DeviceKey(call.worker), layer->signature, profile.seconds()};
    costs_.Add(cost);
    turn.out->push_back(SaveLayerCost{cost});
    measured.push_back(SecondsText(profile.layer(), profile.seconds()));
  }
  std::string text =
      absl::StrCat("measured on ", Describe(call.worker), ", forward + backward of a ",
                   "micro-batch: ", absl::StrJoin(measured, ", "));
  if (measured.empty()) text = absl::StrCat("measured nothing on ", Describe(call.worker));
  for (const std::string& why : response.passed_over()) absl::StrAppend(&text, "; ", why);
  return text;
}

void Profiling::Forget(const std::string& job_id, Turn turn) {
  const auto at = entries_.find(job_id);
  if (at == entries_.end()) return;
  for (const auto& [name, call] : at->second.open) {
    turn.out->push_back(CancelProfile{name, call.worker.instance(), job_id});
  }
  entries_.erase(at);
}

}  // namespace headrace
