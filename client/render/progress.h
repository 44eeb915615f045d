// A job's progress on stderr: a live bar on a terminal, plain lines otherwise.
#pragma once

#include <deque>
#include <string>

#include "client/console.h"
#include "client/coordinator.h"
#include "headrace/v1/job.pb.h"

namespace headrace {

// What a bar or a line shows.
struct ProgressState {
  std::string name;
  int64_t total_steps = 0;
  v1::StepResult step;          // the last one
  double mean_step_s = 0;       // over the last steps
  double validation_loss = -1;  // the last one; < 0: none yet
};

// "bible  [######......]  120/300  loss 1.8342  val 1.9011  12.3 K tok/s  bubble 11.2 %  ETA 1m
// 20s", fitted to `width`: the bar shrinks first, then goes, then the end is cut.
std::string RenderBar(const ProgressState& state, int width);

// The same facts without the bar: "step 120/300  loss 1.8342 …".
std::string RenderStepLine(const ProgressState& state);

// "step 118 was not applied: the loss is NaN"; "" for one that was.
std::string RenderSkippedStep(const v1::StepResult& step);

// Used by one thread.
class Progress : public JobObserver {
 public:
  explicit Progress(const Console& console) : console_(console) {}
  ~Progress() override { Clear(); }

  void OnJob(const v1::Job& job) override;
  void OnStep(const v1::StepResult& step) override;

  // "uploading 3.0 MiB of 12 MiB": one line, overwritten; on a terminal only.
  void OnUpload(int64_t done, int64_t total);

  // A line of its own, dim where colour is on.
  void Say(const std::string& line);

  // Takes the bar off the terminal.
  void Clear();

 private:
  void Draw(const std::string& line);
  bool IsWorthALine(const v1::StepResult& step);

  const Console console_;
  ProgressState state_;
  std::string said_;                 // the last line about the job's state
  std::deque<double> step_seconds_;  // of the last steps
  double since_line_s_ = 0;
  bool drawn_ = false;
};

}  // namespace headrace
