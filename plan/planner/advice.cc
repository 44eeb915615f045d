#include "plan/planner/advice.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/flags.h"
#include "plan/batch.h"
#include "plan/planner/trial.h"

namespace headrace {
namespace {

// Numbers of stages looked at where a job allows more of them.
constexpr int kMaxStagesAdvised = 8;
// A search for the least number that fits ends within one part in so many of it.
constexpr int kPrecision = 32;

int MostStages(const JobShape& job, const std::vector<PlanWorker>& workers) {
  return static_cast<int>(std::min(job.layers.size(), workers.size()));
}

// The numbers of stages to look at: 0 stands for any up to `most`. The most first, for they are the
// likeliest to fit.
std::vector<int> StagesToTry(int stages, int most) {
  if (stages > 0) return {stages};
  std::vector<int> tries;
  const bool all = most <= kMaxStagesAdvised;
  for (int k = most; k > 0; k = all ? k - 1 : k / 2) tries.push_back(k);
  return tries;
}

// The least n in [first, last] for which `fits(n)`, if what fits does so for every larger n too. If
// not, some n that fits, or nullopt although there is one. Few calls: first, first + 1, first + 3,
// first + 7, … , last, then halving.
template <typename Fits>
std::optional<int> LeastThatFits(int first, int last, const Fits& fits) {
  if (first > last) return std::nullopt;
  int below = first - 1, at = first;
  for (int64_t step = 1; !fits(at); step *= 2) {
    if (at == last) return std::nullopt;
    below = at;
    at = static_cast<int>(std::min<int64_t>(last, at + step));
  }
  while (at - below > 1 + below / kPrecision) {
    const int middle = below + (at - below) / 2;
    (fits(middle) ? at : below) = middle;
  }
  return at;
}

std::string DescribeBytes(const StageBytes& bytes) {
  return absl::StrCat("weights ", FormatBytes(bytes.weights), ", gradients ",
                      FormatBytes(bytes.gradients), ", optimizer ", FormatBytes(bytes.optimizer),
                      ", stash ", FormatBytes(bytes.stash), ", workspace ",
                      FormatBytes(bytes.workspace), ", link ", FormatBytes(bytes.link));
}

// The stages' number that comes nearest, and what it lacks.
std::string DescribeMisfit(const JobShape& job, const std::vector<PlanWorker>& workers,
                           int64_t stages) {
  Trials trials(&job, workers);
  Misfit least;
  for (const int k : StagesToTry(static_cast<int>(stages), MostStages(job, workers))) {
    const Misfit misfit = trials.FindMisfit(k);
    if (least.num_stages == 0 || misfit.missing_bytes <= least.missing_bytes) least = misfit;
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

int64_t LargestMemory(const std::vector<PlanWorker>& workers) {
  int64_t largest = 0;
  for (const PlanWorker& worker : workers) largest = std::max(largest, worker.memory_limit_bytes);
  return largest;
}

// `count` more workers like the largest there is.
std::vector<PlanWorker> WithMore(std::vector<PlanWorker> workers, int count) {
  const int64_t most = LargestMemory(workers);
  const PlanWorker largest =
      *std::find_if(workers.begin(), workers.end(),
                    [most](const PlanWorker& worker) { return worker.memory_limit_bytes == most; });
  workers.insert(workers.end(), count, largest);
  return workers;
}

// Larger M that make the largest micro-batch smaller, ascending.
std::vector<int64_t> LargerM(int64_t batch, int64_t m) {
  std::vector<int64_t> all;
  for (int64_t largest = (batch + m - 1) / m - 1; largest > 0;) {
    m = (batch + largest - 1) / largest;
    all.push_back(m);
    largest = (batch + m - 1) / m - 1;
  }
  return all;
}

// What may be changed.
struct Settings {
  v1::RecomputeMode recompute = v1::RECOMPUTE_MODE_ALWAYS;
  v1::ScheduleKind schedule = v1::SCHEDULE_KIND_GPIPE;
  int64_t micro_batches = 1;
  int stages = 0;  // 0: any
};

// Looks for changes that help. Each look plans one variation of the job, without building its
// layers again.
class Advisor {
 public:
  Advisor(const v1::JobSpec& spec, JobShape job, const std::vector<PlanWorker>& workers)
      : batch_(spec.training().batch_size()), job_(std::move(job)), workers_(workers) {
    given_.recompute = job_.recompute;
    given_.schedule = job_.schedule;
    given_.micro_batches = spec.training().micro_batches();
    given_.stages = static_cast<int>(spec.pipeline().stages());
  }

  std::string Suggest();

 private:
  using Help = std::optional<std::string>;

  void Apply(const Settings& settings);
  bool Fits(const Settings& settings);
  bool FitsMore(const Settings& settings, int num_workers);
  Help TryRecompute();
  Help TrySchedule();
  Help TryLargerM(Settings settings);
  Help TryMoreWorkers(Settings settings);
  Help TryTogether();
  Help TryEverything();

  const int64_t batch_;
  JobShape job_;
  const std::vector<PlanWorker>& workers_;
  Settings given_;
};

void Advisor::Apply(const Settings& settings) {
  job_.recompute = settings.recompute;
  job_.schedule = settings.schedule;
  if (job_.micro_batches() == settings.micro_batches) return;
  job_.micro_batch_sequences = *SplitBatch(batch_, settings.micro_batches);
  job_.largest.sequences = job_.micro_batch_sequences.front();
}

bool Advisor::Fits(const Settings& settings) {
  Apply(settings);
  Trials trials(&job_, workers_);
  for (const int k : StagesToTry(settings.stages, MostStages(job_, workers_))) {
    if (trials.Fits(k)) return true;
  }
  return false;
}

// On at least so many workers: those that are there and more like the largest.
bool Advisor::FitsMore(const Settings& settings, int num_workers) {
  Apply(settings);
  const int have = static_cast<int>(workers_.size());
  const std::vector<PlanWorker> workers = WithMore(workers_, std::max(0, num_workers - have));
  Trials trials(&job_, workers);
  if (trials.Fits(num_workers)) return true;
  if (settings.stages > 0) return false;
  // With the large ones alone: a small one may be able to hold nothing at all.
  const int64_t most = LargestMemory(workers);
  const auto large =
      std::count_if(workers.begin(), workers.end(),
                    [most](const PlanWorker& worker) { return worker.memory_limit_bytes == most; });
  return large < num_workers && trials.Fits(static_cast<int>(large));
}

Advisor::Help Advisor::TryRecompute() {
  Settings settings = given_;
  if (settings.recompute == v1::RECOMPUTE_MODE_ALWAYS) return std::nullopt;
  settings.recompute = v1::RECOMPUTE_MODE_ALWAYS;
  if (!Fits(settings)) return std::nullopt;
  return "pipeline.recompute: always";
}

Advisor::Help Advisor::TrySchedule() {
  Settings settings = given_;
  if (settings.schedule == v1::SCHEDULE_KIND_1F1B) return std::nullopt;
  settings.schedule = v1::SCHEDULE_KIND_1F1B;
  if (!Fits(settings)) return std::nullopt;
  return "pipeline.schedule: 1f1b";
}

Advisor::Help Advisor::TryLargerM(Settings settings) {
  const std::vector<int64_t> larger = LargerM(batch_, given_.micro_batches);
  const auto found = LeastThatFits(0, static_cast<int>(larger.size()) - 1, [&](int i) {
    settings.micro_batches = larger[i];
    return Fits(settings);
  });
  if (!found) return std::nullopt;
  return absl::StrCat("training.micro_batches: ", larger[*found]);
}

Advisor::Help Advisor::TryMoreWorkers(Settings settings) {
  const int have = static_cast<int>(workers_.size());
  const bool automatic = given_.stages == 0;
  const auto found = LeastThatFits((automatic ? have : given_.stages) + 1,
                                   static_cast<int>(job_.layers.size()), [&](int n) {
                                     if (!automatic) settings.stages = n;
                                     return FitsMore(settings, n);
                                   });
  if (!found) return std::nullopt;
  if (*found <= have) return absl::StrCat("pipeline.stages: ", *found);
  return absl::StrCat(*found, " workers (", *found - have, " more like the largest",
                      automatic ? ")" : absl::StrCat(") and pipeline.stages: ", *found));
}

// Several settings together, as few as help: recompute and a larger M, then 1F1B too.
Advisor::Help Advisor::TryTogether() {
  Settings settings = given_;
  settings.recompute = v1::RECOMPUTE_MODE_ALWAYS;
  std::string words = "pipeline.recompute: always";
  if (const auto m = TryLargerM(settings); m) return absl::StrCat(words, " and ", *m);
  settings.schedule = v1::SCHEDULE_KIND_1F1B;
  absl::StrAppend(&words, ", pipeline.schedule: 1f1b");
  if (Fits(settings)) return words;
  if (const auto m = TryLargerM(settings); m) return absl::StrCat(words, " and ", *m);
  return std::nullopt;
}

// Every setting at its thriftiest, and more workers.
Advisor::Help Advisor::TryEverything() {
  Settings settings = given_;
  settings.recompute = v1::RECOMPUTE_MODE_ALWAYS;
  settings.schedule = v1::SCHEDULE_KIND_1F1B;
  settings.micro_batches = batch_;
  const auto more = TryMoreWorkers(settings);
  if (!more) return std::nullopt;
  return absl::StrCat(*more,
                      ", pipeline.recompute: always, pipeline.schedule: 1f1b and "
                      "training.micro_batches: ",
                      batch_);
}

std::string Advisor::Suggest() {
  std::vector<std::string> helps;
  const auto add = [&helps](Help help) {
    if (help) helps.push_back(*std::move(help));
  };
  add(TryRecompute());
  add(TrySchedule());
  add(TryLargerM(given_));
  if (helps.empty()) add(TryTogether());
  add(TryMoreWorkers(given_));
  if (helps.empty()) add(TryEverything());
  if (helps.empty()) {
    return "; no number of such workers, no larger micro_batches and no recompute would make it "
           "fit: it needs workers with more memory, a smaller batch or a smaller model";
  }
  return absl::StrCat(". It would fit with ", absl::StrJoin(helps, ", or with "));
}

}  // namespace

absl::Status ExplainMisfit(const v1::JobSpec& spec, const JobShape& job,
                           const std::vector<PlanWorker>& workers, Advice advice) {
  std::string text = DescribeMisfit(job, workers, spec.pipeline().stages());
  if (advice == Advice::kGiven) text += Advisor(spec, job, workers).Suggest();
  return absl::FailedPreconditionError(text);
}

absl::Status ExplainGenerateMisfit(const JobShape& job, const std::vector<PlanWorker>& workers) {
  return absl::FailedPreconditionError(DescribeMisfit(job, workers, 0));
}

}  // namespace headrace
