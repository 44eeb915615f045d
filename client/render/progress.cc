#include "client/render/progress.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "client/job_keys.h"
#include "client/render/human.h"
#include "client/render/table.h"
#include "common/flags.h"

namespace headrace {
namespace {

constexpr size_t kWindow = 20;  // steps the speed is averaged over
constexpr int kWidestBar = 30, kNarrowestBar = 6;
constexpr double kQuietest_s = 10;  // a plain line at least this often
constexpr int64_t kLinesWanted = 50;

std::string Facts(const ProgressState& state) {
  std::string out = absl::StrCat("loss ", FormatLoss(state.step.loss()));
  if (state.validation_loss >= 0) {
    absl::StrAppend(&out, "  val ", FormatLoss(state.validation_loss));
  }
  if (state.mean_step_s > 0) {
    absl::StrAppend(&out, "  ",
                    FormatCount(static_cast<double>(state.step.tokens()) / state.mean_step_s),
                    " tok/s");
  }
  absl::StrAppend(&out, "  bubble ", FormatShare(state.step.bubble()));
  const double left = static_cast<double>(state.total_steps - state.step.step());
  return absl::StrCat(out, "  ETA ", FormatSeconds(left * state.mean_step_s));
}

std::string Count(const ProgressState& state) {
  return absl::StrCat(state.step.step(), "/", state.total_steps);
}

}  // namespace

std::string RenderBar(const ProgressState& state, int width) {
  const std::string head = state.name;
  const std::string tail = absl::StrCat(Count(state), "  ", Facts(state));
  const int room = width - DisplayWidth(head) - DisplayWidth(tail) - 6;  // brackets and gaps
  if (room < kNarrowestBar) return Cut(absl::StrCat(head, "  ", tail), width);
  const int length = std::min(room, kWidestBar);
  const double share = state.total_steps > 0 ? static_cast<double>(state.step.step()) /
                                                   static_cast<double>(state.total_steps)
                                             : 0;
  const int done = std::clamp(static_cast<int>(share * length), 0, length);
  return absl::StrCat(head, "  [", std::string(done, '#'), std::string(length - done, '.'), "]  ",
                      tail);
}

std::string RenderStepLine(const ProgressState& state) {
  return absl::StrCat("step ", Count(state), "  ", Facts(state));
}

std::string RenderSkippedStep(const v1::StepResult& step) {
  if (step.skipped().empty()) return "";
  return absl::StrCat("step ", step.step(), " was not applied: ", Printable(step.skipped()));
}

void Progress::OnJob(const v1::Job& job) {
  state_.name = Printable(job.name());
  if (job.spec().training().steps() > 0) state_.total_steps = job.spec().training().steps();
  if (HasEnded(job.state())) return;  // whoever watches says how it ended
  const auto* word = v1::JobState_descriptor()->FindValueByNumber(job.state());
  const std::string line = absl::StrCat(
      "job ", job.id(), " (", state_.name, ") ", word == nullptr ? "?" : EnumWord(*word),
      job.message().empty() ? "" : ": ", Printable(job.message()));
  if (line == said_) return;
  said_ = line;
  Say(line);
}

void Progress::Say(const std::string& line) {
  Clear();
  console_.Say(console_.Dim(line));
}

bool Progress::IsWorthALine(const v1::StepResult& step) {
  const int64_t stride =
      std::max<int64_t>(1, (state_.total_steps + kLinesWanted - 1) / kLinesWanted);
  since_line_s_ += step.seconds();
  const bool worth = step.step() == 1 || step.step() == state_.total_steps ||
                     step.step() % stride == 0 || step.has_validation_loss() ||
                     since_line_s_ >= kQuietest_s;
  if (worth) since_line_s_ = 0;
  return worth;
}

void Progress::OnStep(const v1::StepResult& step) {
  state_.step = step;
  if (const std::string line = RenderSkippedStep(step); !line.empty()) Say(line);
  if (step.has_validation_loss()) state_.validation_loss = step.validation_loss();
  step_seconds_.push_back(step.seconds());
  if (step_seconds_.size() > kWindow) step_seconds_.pop_front();
  state_.mean_step_s = std::accumulate(step_seconds_.begin(), step_seconds_.end(), 0.0) /
                       static_cast<double>(step_seconds_.size());
  if (console_.err_is_terminal) {
    Draw(RenderBar(state_, console_.width - 1));
  } else if (IsWorthALine(step)) {
    console_.Say(RenderStepLine(state_));
  }
}

void Progress::OnUpload(int64_t done, int64_t total) {
  if (!console_.err_is_terminal) return;
  Draw(absl::StrCat("uploading ", FormatBytes(done), " of ", FormatBytes(total)));
}

// "\r" to the start of the line, "\x1b[K" clears its rest.
void Progress::Draw(const std::string& line) {
  *console_.err << "\r" << line << "\x1b[K" << std::flush;
  drawn_ = true;
}

void Progress::Clear() {
  if (drawn_) *console_.err << "\r\x1b[K" << std::flush;
  drawn_ = false;
}

}  // namespace headrace
