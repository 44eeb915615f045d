// One fault, one sentence. A pipeline that breaks in one place breaks everywhere within a second:
// the worker at fault says so, its neighbours accuse it, others only see that they were stopped.
// This finds the root among what was said:
//
//   1. a stage's own fault             the earliest that arrived
//   2. a lost worker                   the earliest: lease run out, connection refused or reset
//   3. an accusation                   of a worker that then did not answer: that one is lost
//   4. an accusation                   of a worker that answered
//   5. a worker that did not answer
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace headrace {

enum class FaultKind { kOwn, kLost, kAccusation, kSilent };

struct Fault {
  FaultKind kind = FaultKind::kOwn;
  std::string worker;  // who has the fault, or who accuses; empty: the coordinator
  int64_t stage = 0;
  std::string text;    // own fault, accusation: the worker's sentence; otherwise the cause
  std::string blamed;  // accusation: whom
};

// Where it began.
struct Root {
  FaultKind kind = FaultKind::kOwn;  // kOwn, kLost, or kAccusation of a worker that is still there
  std::string worker;  // who has the fault, is lost, is accused; empty: the coordinator
  int64_t stage = 0;
  std::string verdict;  // one sentence
};

// `stages[k]` is stage k's worker. `last_step` is the last one all stages finished.
// `faults` in order of arrival, not empty.
Root FindRoot(const std::vector<Fault>& faults, const std::vector<std::string>& stages,
              int64_t last_step);

// Whether waiting for more could not change the root: a fault of a stage's own or a lost worker is
// known.
bool RootIsKnown(const std::vector<Fault>& faults);

}  // namespace headrace
