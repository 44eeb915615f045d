#include "plan/schedule_check.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "plan/replay.h"

namespace headrace {
namespace {

// Errors travel in RPC trailers, which have room for a few kilobytes.
constexpr size_t kMaxErrorCells = 24;
constexpr size_t kMaxErrorRows = 8;
constexpr size_t kNoMark = SIZE_MAX;

// Cells [first, end) of one list, each padded to `width`, the marked one in brackets.
std::string DrawCells(const std::vector<Action>& actions, size_t first, size_t end, size_t mark,
                      size_t width) {
  std::string row = first > 0 ? "… " : "";
  for (size_t i = first; i < end; ++i) {
    std::string cell = ToText(actions[i]);
    cell = i == mark ? absl::StrCat("[", cell, "]") : absl::StrCat(" ", cell, " ");
    cell.resize(std::max(cell.size(), width), ' ');
    absl::StrAppend(&row, cell);
  }
  if (end < actions.size()) return absl::StrCat(row, " …");
  while (!row.empty() && row.back() == ' ') row.pop_back();
  return row;
}

// The part of a list around the mark, short enough for an error.
std::string DrawAround(const std::vector<Action>& actions, size_t mark, size_t width) {
  const size_t centre = mark == kNoMark ? 0 : mark;
  const size_t first = centre > kMaxErrorCells / 2 ? centre - kMaxErrorCells / 2 : 0;
  return DrawCells(actions, first, std::min(first + kMaxErrorCells, actions.size()), mark, width);
}

std::string RowName(size_t stage, size_t num_stages) {
  std::string name = absl::StrCat(stage);
  name.insert(0, absl::StrCat(num_stages - 1).size() - name.size(), ' ');
  return absl::StrCat("stage ", name, " |");
}

size_t CellWidth(const Schedule& schedule) {
  size_t width = 0;
  for (const auto& actions : schedule) {
    for (const Action& action : actions) width = std::max(width, ToText(action).size() + 2);
  }
  return width;
}

absl::Status BadAction(const std::vector<Action>& actions, size_t index, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("action ", index + 1, " (", ToText(actions[index]),
                                                 ") ", std::string(why), ":",
                                                 DrawAround(actions, index, 0)));
}

// What has happened to a micro-batch so far.
struct Progress {
  bool forward = false, recompute = false, backward = false;
};

// Why `action` cannot come now; empty: it can.
std::string WhyNot(const Action& action, int stage, int micro_batches, int backwards,
                   const std::vector<Progress>& progress) {
  if (action.chunk != stage) return absl::StrCat("is of chunk ", action.chunk, ", not ", stage);
  if (action.micro_batch < 0 || action.micro_batch >= micro_batches) {
    return absl::StrCat("is of a micro-batch outside 0 to ", micro_batches - 1);
  }
  const Progress& done = progress[action.micro_batch];
  switch (action.kind) {
    case ActionKind::kForward:
      return done.forward ? "repeats a forward" : "";
    case ActionKind::kRecompute:
      if (!done.forward) return "comes before its forward";
      if (done.backward) return "comes after its backward";
      return done.recompute ? "repeats a recompute" : "";
    case ActionKind::kBackward:
      if (!done.forward) return "comes before its forward";
      if (done.backward) return "repeats a backward";
      if (action.micro_batch != backwards) {
        return absl::StrCat("is out of order: the next backward is of micro-batch ", backwards);
      }
  }
  return "";
}

// Whoever waits, waits for a neighbour, so the chain from any of them ends in two neighbours that
// wait for each other: the cause. Returns the lower one.
int FindCause(const std::vector<std::optional<Waiting>>& by_stage, int stage) {
  while (by_stage[by_stage[stage]->on]->on != stage) stage = by_stage[stage]->on;
  return std::min(stage, by_stage[stage]->on);
}

absl::Status Deadlock(const Schedule& schedule, const std::vector<Waiting>& waiting, int credits) {
  std::vector<std::optional<Waiting>> by_stage(schedule.size());
  for (const Waiting& w : waiting) by_stage[w.stage] = w;
  const int cause = FindCause(by_stage, waiting[0].stage);
  std::string text =
      absl::StrCat("deadlock with ", credits, credits == 1 ? " credit" : " credits", " an edge: ");
  for (const int k : {cause, cause + 1}) {
    absl::StrAppend(&text, "stage ", k, " waits at ", ToText(schedule[k][by_stage[k]->action]), " ",
                    by_stage[k]->what, k == cause ? "; " : "");
  }
  const size_t before = std::min<size_t>(cause, kMaxErrorRows / 2 - 1);
  const size_t first = cause - before;
  const size_t end = std::min(first + kMaxErrorRows, schedule.size());
  const size_t width = CellWidth(schedule);
  for (size_t k = first; k < end; ++k) {
    const size_t mark = by_stage[k] ? by_stage[k]->action : kNoMark;
    absl::StrAppend(&text, "\n", RowName(k, schedule.size()), DrawAround(schedule[k], mark, width));
  }
  return absl::FailedPreconditionError(text);
}

}  // namespace

absl::Status CheckActions(const std::vector<Action>& actions, int stage, int micro_batches) {
  if (micro_batches < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("stage ", stage, ": ", micro_batches, " micro-batches; expected 1 or more"));
  }
  if (actions.size() / 2 < static_cast<size_t>(micro_batches)) {
    return absl::InvalidArgumentError(absl::StrCat("stage ", stage, ": ", actions.size(),
                                                   " actions; ", micro_batches,
                                                   " micro-batches need an F and a B each"));
  }
  std::vector<Progress> progress(micro_batches);
  int backwards = 0;
  for (size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    const std::string why = WhyNot(action, stage, micro_batches, backwards, progress);
    if (!why.empty()) return BadAction(actions, i, why);
    Progress& done = progress[action.micro_batch];
    switch (action.kind) {
      case ActionKind::kForward:
        done.forward = true;
        break;
      case ActionKind::kRecompute:
        done.recompute = true;
        break;
      case ActionKind::kBackward:
        done.backward = true;
        ++backwards;
    }
  }
  if (backwards < micro_batches) {
    const auto at = std::find_if(progress.begin(), progress.end(),
                                 [](const Progress& done) { return !done.backward; });
    return BadAction(actions, actions.size() - 1,
                     absl::StrCat("is the last, but micro-batch ", at - progress.begin(),
                                  " has no ", at->forward ? "B" : "F"));
  }
  return absl::OkStatus();
}

absl::Status CheckSchedule(const Schedule& schedule, int micro_batches, int credits) {
  if (schedule.empty()) return absl::InvalidArgumentError("a schedule without stages");
  if (credits < 1) {
    return absl::InvalidArgumentError(absl::StrCat(credits, " credits; expected 1 or more"));
  }
  for (size_t k = 0; k < schedule.size(); ++k) {
    HEADRACE_RETURN_IF_ERROR(CheckActions(schedule[k], static_cast<int>(k), micro_batches));
  }
  ReplayOptions options;
  options.costs.resize(schedule.size());
  options.credits = credits;
  const Replay replay = ReplaySchedule(schedule, micro_batches, options);
  if (replay.waiting.empty()) return absl::OkStatus();
  return Deadlock(schedule, replay.waiting, credits);
}

std::string DrawGrid(const Schedule& schedule) {
  const size_t width = CellWidth(schedule);
  std::string grid;
  for (size_t k = 0; k < schedule.size(); ++k) {
    absl::StrAppend(&grid, RowName(k, schedule.size()),
                    DrawCells(schedule[k], 0, schedule[k].size(), kNoMark, width), "\n");
  }
  return grid;
}

}  // namespace headrace
