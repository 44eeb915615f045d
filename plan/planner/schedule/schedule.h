// Schedules as data: pure functions from the pipeline's shape to each stage's list of actions. One
// file a schedule gives the order of F and B; one pass, here, adds the R of recomputed
// micro-batches.
#pragma once

#include <vector>

#include "headrace/v1/job.pb.h"
#include "plan/action.h"
#include "plan/schedule_check.h"

namespace headrace {

struct ScheduleShape {
  int stages = 1;         // K
  int micro_batches = 1;  // M
  v1::RecomputeMode recompute = v1::RECOMPUTE_MODE_ALWAYS;
  // Working sets that may be filled ahead of the one the next backward needs. Each costs memory and
  // hides one more recompute behind the wait for a gradient.
  int extra_working_sets = 0;
  // 1F1B: micro-batches a stage holds more than the next one. 1 is the least. More of them cost a
  // boundary each and hide the way between the two stages (one_f_one_b.h). As
  // many credits are needed, or neighbours wait to send to each other.
  int lead = 1;
};

bool Recomputes(const ScheduleShape& shape, int micro_batch);

// Puts R(m) into a list of F and B: right behind the backward (or the forwards) before B(m), so
// that it runs while the stage would else wait for B(m)'s gradient; with e extra working sets R(m +
// e) goes before B(m) too. The last stage waits for no gradient, so there an R ahead would only
// delay.
//
//   0F0 0F1 0F2 0B0 0B1 0B2  ─always─▶  0F0 0F1 0F2 0R0 0B0 0R1 0B1 0R2 0B2
//                            ─e = 1──▶  0F0 0F1 0F2 0R0 0R1 0B0 0R2 0B1 0B2
std::vector<Action> AddRecompute(const ScheduleShape& shape, int stage,
                                 const std::vector<Action>& actions);

// One stage's list, and all of them, by the job's choice (unspecified: gpipe).
std::vector<Action> MakeActions(v1::ScheduleKind kind, const ScheduleShape& shape, int stage);
Schedule MakeSchedule(v1::ScheduleKind kind, const ScheduleShape& shape);

}  // namespace headrace
