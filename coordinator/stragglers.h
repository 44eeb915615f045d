// Finds a stage that computes much longer than its plan gives it. What a step's stages took, over
// what the plan predicts, is a ratio per stage; a plan may be wrong about the machines as a whole,
// so the median of the ratios is taken for right, and a stage far above it lags. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "headrace/v1/job.pb.h"

namespace headrace {

// Of one generation of a job.
class Stragglers {
 public:
  static constexpr double kFactor = 2;      // above the median
  static constexpr int kSteps = 5;          // in a row
  static constexpr double kLeast_s = 0.01;  // a step; what less costs is the system's noise

  explicit Stragglers(const v1::Plan& plan);

  // One sentence with figures, once: "worker w1 (stage 1) lags: …".
  std::optional<std::string> Add(const v1::StepResult& step);

 private:
  struct Stage {
    int64_t number = 0;
    std::string worker;
    double planned_s = 0;  // compute and recompute of a step
    int late = 0;          // steps in a row
  };
  int num_stages_ = 0;
  std::vector<Stage> stages_;  // those that tell
  bool told_ = false;
};

}  // namespace headrace
