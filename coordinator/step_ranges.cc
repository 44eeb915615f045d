#include "coordinator/step_ranges.h"

#include <algorithm>
#include <vector>

namespace headrace {

bool Contains(const StepRanges& ranges, int64_t step) {
  return std::any_of(ranges.begin(), ranges.end(), [step](const v1::StepRange& range) {
    return range.first() <= step && step <= range.last();
  });
}

void AddRange(int64_t first, int64_t last, StepRanges* ranges) {
  if (last < first) return;
  std::vector<v1::StepRange> all(ranges->begin(), ranges->end());
  all.emplace_back();
  all.back().set_first(first);
  all.back().set_last(last);
  std::sort(all.begin(), all.end(),
            [](const v1::StepRange& a, const v1::StepRange& b) { return a.first() < b.first(); });
  ranges->Clear();
  for (const v1::StepRange& each : all) {
    if (!ranges->empty() && each.first() <= ranges->rbegin()->last() + 1) {
      ranges->rbegin()->set_last(std::max(ranges->rbegin()->last(), each.last()));
    } else {
      *ranges->Add() = each;
    }
  }
}

int64_t LastToDo(const StepRanges& ranges, int64_t steps) {
  while (steps > 0 && Contains(ranges, steps)) {
    for (const v1::StepRange& range : ranges) {
      if (range.first() <= steps && steps <= range.last()) steps = range.first() - 1;
    }
  }
  return std::max<int64_t>(0, steps);
}

int64_t NextToDo(const StepRanges& ranges, int64_t step) {
  ++step;
  while (Contains(ranges, step)) {
    for (const v1::StepRange& range : ranges) {
      if (range.first() <= step && step <= range.last()) step = range.last() + 1;
    }
  }
  return step;
}

}  // namespace headrace
