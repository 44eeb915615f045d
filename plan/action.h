// One thing a stage does with one micro-batch, and its text form.
//
//   F  forward     GPipe §2.2: F_k on a micro-batch
//   R  recompute   GPipe §2.3: F_k again, locally, from the kept boundary activation
//   B  backward    B_k, accumulating weight gradients
//
// A schedule is one list of actions per stage. The planner writes it, the worker obeys it, and
// everything else follows from it: what is received before an action and sent after it, and what is
// stashed (a micro-batch with an R in its list keeps its boundary only, one without keeps all).
// The text form is "<chunk>F<micro-batch>": "1F3" is the forward of micro-batch 3 on chunk 1.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace headrace {

enum class ActionKind { kForward, kRecompute, kBackward };

struct Action {
  int chunk = 0;  // equals the stage while a worker serves one stage
  ActionKind kind = ActionKind::kForward;
  int micro_batch = 0;

  friend bool operator==(const Action&, const Action&) = default;
};

std::string ToText(const Action& action);
// Separated by single spaces: "0F0 0F1 0R0 0B0".
std::string ToText(const std::vector<Action>& actions);

// INVALID_ARGUMENT names the word that is not an action and its place in the text.
absl::StatusOr<std::vector<Action>> ParseActions(std::string_view text);

}  // namespace headrace
