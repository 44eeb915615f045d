#include "plan/planner/advice.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/flags.h"
#include "common/status.h"
#include "plan/planner/trial.h"

namespace headrace {
namespace {

// How many larger M and how many more workers are tried.
constexpr int kMaxTries = 64;

int MostStages(const JobShape& job, const std::vector<PlanWorker>& workers) {
  return static_cast<int>(std::min(job.layers.size(), workers.size()));
}

// The numbers of stages a job allows.
struct StageRange {
  int first = 1, last = 1;
};
StageRange StagesOf(const v1::JobSpec& spec, const JobShape& job,
                    const std::vector<PlanWorker>& workers) {
  const int stages = static_cast<int>(spec.pipeline().stages());
  return stages > 0 ? StageRange{stages, stages} : StageRange{1, MostStages(job, workers)};
}

bool Fits(const v1::JobSpec& spec, const std::vector<PlanWorker>& workers) {
  const auto job = ResolveTraining(spec);
  if (!job.ok()) return false;
  const StageRange range = StagesOf(spec, *job, workers);
  if (range.last > MostStages(*job, workers)) return false;
  Trials trials(&*job, &workers);
  // From the most stages down: they are the likeliest to fit.
  for (int k = range.last; k >= range.first; --k) {
    if (trials.Fits(k)) return true;
  }
  return false;
}

std::string DescribeBytes(const StageBytes& bytes) {
  return absl::StrCat("weights ", FormatBytes(bytes.weights), ", gradients ",
                      FormatBytes(bytes.gradients), ", optimizer ", FormatBytes(bytes.optimizer),
                      ", stash ", FormatBytes(bytes.stash), ", workspace ",
                      FormatBytes(bytes.workspace), ", link ", FormatBytes(bytes.link));
}

// The stages' number that comes nearest, and what it lacks.
std::string DescribeMisfit(const JobShape& job, const std::vector<PlanWorker>& workers,
                           StageRange range) {
  Trials trials(&job, &workers);
  Misfit least;
  for (int k = range.first; k <= range.last; ++k) {
    const Misfit misfit = trials.FindMisfit(k);
    if (least.num_stages == 0 || misfit.missing_bytes < least.missing_bytes) least = misfit;
  }
  const int last = least.cell.end - 1;
  return absl::StrCat(
      "does not fit: with ", least.num_stages, least.num_stages == 1 ? " stage" : " stages",
      ", stage ", least.stage, " (", job.layers[least.cell.first].name,
      last > least.cell.first ? absl::StrCat(" to ", job.layers[last].name) : "", ") needs ",
      FormatBytes(least.needed.total()), " on worker ", workers[least.worker].name, ", which has ",
      FormatBytes(least.limit_bytes), ": ", least.missing_bytes, " bytes (",
      FormatBytes(least.missing_bytes), ") are missing; it needs ", DescribeBytes(least.needed));
}

// `count` more workers like the largest there is.
std::vector<PlanWorker> WithMore(std::vector<PlanWorker> workers, int count) {
  const PlanWorker largest = *std::max_element(workers.begin(), workers.end(),
                                               [](const PlanWorker& a, const PlanWorker& b) {
                                                 return a.memory_limit_bytes < b.memory_limit_bytes;
                                               });
  workers.insert(workers.end(), count, largest);
  return workers;
}

// Larger M that make the largest micro-batch smaller, ascending.
std::vector<int64_t> LargerM(const v1::JobSpec& spec) {
  const int64_t batch = spec.training().batch_size();
  std::vector<int64_t> all;
  int64_t m = spec.training().micro_batches();
  for (int64_t largest = (batch + m - 1) / m - 1; largest > 0;) {
    m = (batch + largest - 1) / largest;
    all.push_back(m);
    largest = (batch + m - 1) / m - 1;
  }
  if (all.size() > kMaxTries) all.erase(all.begin() + kMaxTries - 1, all.end() - 1);
  return all;
}

std::optional<std::string> TryRecompute(v1::JobSpec spec, const std::vector<PlanWorker>& workers) {
  const auto mode = spec.pipeline().recompute();
  if (mode == 0 || mode == v1::RECOMPUTE_MODE_ALWAYS) return std::nullopt;
  spec.mutable_pipeline()->set_recompute(v1::RECOMPUTE_MODE_ALWAYS);
  if (!Fits(spec, workers)) return std::nullopt;
  return "pipeline.recompute: always";
}

std::optional<std::string> TrySchedule(v1::JobSpec spec, const std::vector<PlanWorker>& workers) {
  if (spec.pipeline().schedule() == v1::SCHEDULE_KIND_1F1B) return std::nullopt;
  spec.mutable_pipeline()->set_schedule(v1::SCHEDULE_KIND_1F1B);
  if (!Fits(spec, workers)) return std::nullopt;
  return "pipeline.schedule: 1f1b";
}

std::optional<std::string> TryLargerM(v1::JobSpec spec, const std::vector<PlanWorker>& workers) {
  for (const int64_t m : LargerM(spec)) {
    spec.mutable_training()->set_micro_batches(m);
    if (Fits(spec, workers)) return absl::StrCat("training.micro_batches: ", m);
  }
  return std::nullopt;
}

std::optional<std::string> TryMoreWorkers(v1::JobSpec spec, int num_layers,
                                          const std::vector<PlanWorker>& workers) {
  const int have = static_cast<int>(workers.size());
  const bool automatic = spec.pipeline().stages() == 0;
  int from = automatic ? have + 1 : static_cast<int>(spec.pipeline().stages()) + 1;
  std::vector<int> counts;
  for (int n = from; n <= num_layers && n < from + kMaxTries; ++n) counts.push_back(n);
  if (!counts.empty() && counts.back() < num_layers) counts.push_back(num_layers);
  for (const int n : counts) {
    if (!automatic) spec.mutable_pipeline()->set_stages(n);
    if (!Fits(spec, WithMore(workers, std::max(0, n - have)))) continue;
    if (n <= have) return absl::StrCat("pipeline.stages: ", n);
    return absl::StrCat(n, " workers (", n - have, " more like the largest",
                        automatic ? ")" : absl::StrCat(") and pipeline.stages: ", n));
  }
  return std::nullopt;
}

// Several settings together, as few as help: recompute and a larger M, then 1F1B too.
std::optional<std::string> TryTogether(v1::JobSpec spec, const std::vector<PlanWorker>& workers) {
  spec.mutable_pipeline()->set_recompute(v1::RECOMPUTE_MODE_ALWAYS);
  std::string settings = "pipeline.recompute: always";
  if (const auto m = TryLargerM(spec, workers); m) return absl::StrCat(settings, " and ", *m);
  spec.mutable_pipeline()->set_schedule(v1::SCHEDULE_KIND_1F1B);
  absl::StrAppend(&settings, ", pipeline.schedule: 1f1b");
  if (Fits(spec, workers)) return settings;
  if (const auto m = TryLargerM(spec, workers); m) return absl::StrCat(settings, " and ", *m);
  return std::nullopt;
}

// Every setting at its thriftiest, and more workers.
std::optional<std::string> TryEverything(v1::JobSpec spec, int num_layers,
                                         const std::vector<PlanWorker>& workers) {
  spec.mutable_pipeline()->set_recompute(v1::RECOMPUTE_MODE_ALWAYS);
  spec.mutable_pipeline()->set_schedule(v1::SCHEDULE_KIND_1F1B);
  spec.mutable_training()->set_micro_batches(spec.training().batch_size());
  const auto more = TryMoreWorkers(spec, num_layers, workers);
  if (!more) return std::nullopt;
  return absl::StrCat(*more,
                      ", pipeline.recompute: always, pipeline.schedule: 1f1b and "
                      "training.micro_batches: ",
                      spec.training().batch_size());
}

std::string Suggest(const v1::JobSpec& spec, int num_layers,
                    const std::vector<PlanWorker>& workers) {
  std::vector<std::string> helps;
  const auto add = [&helps](std::optional<std::string> help) {
    if (help) helps.push_back(*std::move(help));
  };
  add(TryRecompute(spec, workers));
  add(TrySchedule(spec, workers));
  add(TryLargerM(spec, workers));
  if (helps.empty()) add(TryTogether(spec, workers));
  add(TryMoreWorkers(spec, num_layers, workers));
  if (helps.empty()) add(TryEverything(spec, num_layers, workers));
  if (helps.empty()) {
    return "; no number of such workers, no larger micro_batches and no recompute would make it "
           "fit: it needs workers with more memory, a smaller batch or a smaller model";
  }
  return absl::StrCat(". It would fit with ", absl::StrJoin(helps, ", or with "));
}

}  // namespace

absl::Status ExplainMisfit(const v1::JobSpec& spec, const std::vector<PlanWorker>& workers) {
  HEADRACE_ASSIGN_OR_RETURN(const JobShape job, ResolveTraining(spec));
  return absl::FailedPreconditionError(
      absl::StrCat(DescribeMisfit(job, workers, StagesOf(spec, job, workers)),
                   Suggest(spec, static_cast<int>(job.layers.size()), workers)));
}

absl::Status ExplainGenerateMisfit(const v1::JobSpec& spec,
                                   const std::vector<PlanWorker>& workers) {
  HEADRACE_ASSIGN_OR_RETURN(const JobShape job, ResolveGenerate(spec));
  return absl::FailedPreconditionError(DescribeMisfit(job, workers, {1, MostStages(job, workers)}));
}

}  // namespace headrace
