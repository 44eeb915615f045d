// A schedule as a picture: one row a stage, time to the right, a bar for each thing the stage does.
// SVG without fonts, scripts or anything else from outside, readable on light and dark.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace headrace {

enum class BarKind { kForward, kRecompute, kBackward, kUpdate, kEvaluate, kWait };

struct Bar {
  BarKind kind = BarKind::kForward;
  int micro_batch = -1;  // written into the bar where it fits; −1: nothing
  double begin_s = 0;
  double end_s = 0;
};

struct GanttRow {
  std::string label;
  std::vector<Bar> bars;  // of any order; of two that overlap the later one covers the other
};

// A moment worth a line through all rows.
struct Mark {
  double at_s = 0;
  std::string text;
};

struct Gantt {
  std::string title;
  std::string subtitle;
  std::vector<GanttRow> rows;
  std::vector<Mark> marks;
};

// More bars than this no viewer opens with pleasure.
inline constexpr int kMaxBars = 200'000;

// Time 0 is at the left edge, the last bar's end at the right.
//   FAILED_PRECONDITION  more than kMaxBars bars
absl::StatusOr<std::string> DrawGantt(const Gantt& gantt);

}  // namespace headrace
