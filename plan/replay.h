// Replays a schedule as the workers would run it: when each action starts and ends, or who waits
// for whom for ever. One replay serves the deadlock check (CheckSchedule) and the planner's
// simulator.
//
// A stage runs its list in order. Before F it takes the upstream activation, before B the
// downstream gradient; taking gives the sender its credit back. After F it sends down, after B up,
// and goes on only when the send has a credit. An edge moves one tensor at a time in each
// direction, beside compute.
//
//   stage k−1   F0 ──activation──▶ stage k   F0 ──▶ stage k+1
//   stage k−1   B0 ◀───gradient─── stage k   B0 ◀── stage k+1
//
// Every time is a maximum over what it waits for plus a cost, so the order in which the replay
// visits stages does not matter, and its own time is linear in the number of actions.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "plan/schedule_check.h"

namespace headrace {

// Seconds of one stage's work on one micro-batch.
struct StageCosts {
  double forward_s = 0;
  double recompute_s = 0;
  double backward_s = 0;
  double activation_s = 0;  // its output's way to the next stage
  double gradient_s = 0;    // its input gradient's way to the previous stage
};

struct ActionTime {
  double start_s = 0;
  double end_s = 0;
};

// A stage that cannot go on, and why.
struct Waiting {
  int stage = 0;
  int on = 0;         // the neighbour that must move first
  size_t action = 0;  // index in the stage's list
  std::string what;   // "for the activation of micro-batch 2 from stage 0"
};

struct Replay {
  std::vector<std::vector<ActionTime>> times;  // [stage][action], of those that ran
  std::vector<Waiting> waiting;                // ascending; empty: all ran
};

struct ReplayOptions {
  std::vector<StageCosts> costs;  // one per stage
  std::vector<double> scale;      // of micro-batch m's costs; empty: 1
  int credits = 2;                // per edge and direction
};

// Each list must have passed CheckActions.
Replay ReplaySchedule(const Schedule& schedule, int micro_batches, const ReplayOptions& options);

}  // namespace headrace
