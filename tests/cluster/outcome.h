// What a job comes to, and what must be the same however it got there.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace headrace {

// JSON numbers read back bit for bit.
struct StepOutcome {
  int64_t step = 0;
  double loss = 0, gradient_norm = 0, validation_loss = 0;  // 0: none
  std::string skipped;

  friend bool operator==(const StepOutcome&, const StepOutcome&) = default;
};

struct Outcome {
  std::vector<StepOutcome> steps;
  std::string weights_sha256;

  friend bool operator==(const Outcome&, const Outcome&) = default;
};

// Of `describe -o json`; of the steps after `after_step` only.
inline Outcome OutcomeOf(const nlohmann::json& job, int64_t after_step = 0) {
  Outcome outcome;
  for (const nlohmann::json& step : job.at("steps")) {
    if (step.at("step") <= after_step) continue;
    outcome.steps.push_back({step.at("step"), step.at("loss"), step.at("gradient_norm"),
                             step.value("validation_loss", 0.0), step.value("skipped", "")});
  }
  outcome.weights_sha256 = job.value("weights_sha256", "");
  return outcome;
}

// For googletest's messages.
inline void PrintTo(const Outcome& outcome, std::ostream* out) {
  *out << "weights " << outcome.weights_sha256 << ", steps";
  for (const StepOutcome& step : outcome.steps) {
    *out << absl::StreamFormat(" %d: %a", step.step, step.loss);
    if (!step.skipped.empty()) *out << " skipped";
  }
}

}  // namespace headrace
