#include "client/render/recovery.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/console.h"
#include "client/render/human.h"
#include "client/render/table.h"
#include "common/flags.h"

namespace headrace {
namespace {

constexpr char kFileScheme[] = "file://";

std::string CourseLine(const char* label, const std::string& text) {
  return absl::StrFormat("%-11s%s\n", label, Printable(text));
}

std::string RangeText(const v1::StepRange& range) {
  return range.first() == range.last() ? absl::StrCat(range.first())
                                       : absl::StrCat(range.first(), "–", range.last());
}

std::string LeftOut(const v1::Job& job) {
  if (job.skipped().empty()) return "";
  std::vector<std::string> ranges;
  for (const v1::StepRange& range : job.skipped()) ranges.push_back(RangeText(range));
  return CourseLine("left out", absl::StrCat("steps ", absl::StrJoin(ranges, ", "),
                                             " (recovery.on_nan: rollback)"));
}

std::string NotApplied(const v1::Job& job) {
  int64_t number = 0;
  const v1::StepResult* last = nullptr;
  for (const v1::StepResult& step : job.steps()) {
    if (step.skipped().empty()) continue;
    ++number;
    last = &step;
  }
  if (last == nullptr) return "";
  return CourseLine("skipped",
                    absl::StrCat(number, number == 1 ? " step was" : " steps were",
                                 " not applied, the last ", last->step(), ": ", last->skipped()));
}

// From one time to the next: "?" where the first is not known, "…" while it lasts.
std::string Between(double from, double to) {
  if (!(from > 0)) return "?";
  return to > 0 ? FormatSeconds(to > from ? to - from : 0) : "…";
}

}  // namespace

std::string WhereKept(const v1::Checkpoint& checkpoint) {
  if (checkpoint.slices().empty() || checkpoint.slices(0).uri().empty()) {
    return "the coordinator's store";
  }
  std::string path = checkpoint.slices(0).uri();
  if (absl::StartsWith(path, kFileScheme)) path = path.substr(sizeof(kFileScheme) - 1);
  return path.substr(0, path.rfind('/'));
}

std::string RenderCourse(const v1::Job& job) {
  std::string out;
  if (!job.from_job().empty()) {
    out = CourseLine("from", absl::StrCat("job ", job.from_job(), " after step ", job.from_step()));
  }
  if (!job.placement().empty()) {
    std::vector<std::string> workers;
    for (const v1::Placement& each : job.placement()) workers.push_back(each.worker());
    absl::StrAppend(&out, CourseLine("runs on", absl::StrJoin(workers, ", ")));
  }
  return absl::StrCat(out, LeftOut(job), NotApplied(job));
}

std::string RenderCheckpoints(const v1::Job& job, int width) {
  if (job.checkpoints().empty()) return "";
  Table table({{"STEP", Align::kRight},
               {"GENERATION", Align::kRight},
               {"MADE"},
               {"SLICES", Align::kRight},
               {"SIZE", Align::kRight},
               {"WHERE"},
               {"STATE"}});
  for (const v1::Checkpoint& each : job.checkpoints()) {
    table.Add(
        {absl::StrCat(each.step()),
         each.generation() == 0 ? "taken over" : absl::StrCat(each.generation()),
         FormatUnixTime(each.unix_seconds()), absl::StrCat(each.slices_size()),
         FormatBytes(each.size_bytes()), Printable(WhereKept(each)),
         each.damaged().empty() ? "good" : absl::StrCat("damaged: ", Printable(each.damaged()))});
  }
  return absl::StrCat("\ncheckpoints\n", table.Render(width, 2));
}

std::string RenderRecoveries(const v1::Job& job, int width) {
  if (job.recoveries().empty()) return "";
  Table table({{"GENERATION", Align::kRight},
               {"AT"},
               {"DETECTION", Align::kRight},
               {"RE-PLAN", Align::kRight},
               {"LOAD", Align::kRight},
               {"REPLAY", Align::kRight},
               {"STEPS", Align::kRight},
               {"FROM"},
               {"CAUSE"}});
  for (const v1::Recovery& each : job.recoveries()) {
    const std::string from =
        each.from_step() == 0 ? each.source() : absl::StrCat(each.source(), " ", each.from_step());
    table.Add({absl::StrCat(each.generation()), FormatUnixTime(each.detected_unix_s()),
               Between(each.failed_unix_s(), each.detected_unix_s()),
               Between(each.detected_unix_s(), each.planned_unix_s()),
               Between(each.planned_unix_s(), each.loaded_unix_s()),
               Between(each.loaded_unix_s(), each.replayed_unix_s()),
               absl::StrCat(std::max<int64_t>(0, each.lost_step() - each.from_step())),
               Printable(from), Printable(each.cause())});
  }
  return absl::StrCat("\nrecoveries; STEPS were done again\n", table.Render(width, 2));
}

}  // namespace headrace
