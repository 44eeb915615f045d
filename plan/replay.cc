#include "plan/replay.h"

#include <algorithm>
#include <deque>

#include "absl/strings/str_cat.h"

namespace headrace {
namespace {

constexpr double kNotSent = -1;

// One direction between two neighbours.
struct Edge {
  int sender = 0;
  int receiver = 0;
  double seconds = 0;             // of one tensor on the way
  double free_s = 0;              // when the last tensor has arrived
  std::vector<double> arrival_s;  // by micro-batch, kNotSent before
  std::vector<double> taken_s;    // in the order of takes
  int sent = 0;
};

struct Stage {
  size_t next = 0;       // action
  double free_s = 0;     // when it can start the next one
  bool sending = false;  // the last action has run, its tensor waits for a credit
};

class Replayer {
 public:
  Replayer(const Schedule& schedule, int micro_batches, const ReplayOptions& options)
      : schedule_(schedule), options_(options), last_(static_cast<int>(schedule.size()) - 1) {
    const size_t num_stages = schedule.size();
    stages_.resize(num_stages);
    replay_.times.resize(num_stages);
    for (int k = 0; k < last_; ++k) {
      const std::vector<double> none(micro_batches, kNotSent);
      down_.push_back({k, k + 1, options.costs[k].activation_s, 0, none, {}, 0});
      up_.push_back({k + 1, k, options.costs[k + 1].gradient_s, 0, none, {}, 0});
    }
  }

  Replay Run() {
    for (int k = 0; k <= last_; ++k) ready_.push_back(k);
    while (!ready_.empty()) {
      const int k = ready_.front();
      ready_.pop_front();
      while (Advance(k)) continue;
    }
    for (int k = 0; k <= last_; ++k) {
      if (stages_[k].next < schedule_[k].size()) {
        replay_.waiting.push_back(WaitingOf(k));
      }
    }
    return std::move(replay_);
  }

 private:
  // Where the action's input comes from and its output goes to; null: nowhere.
  Edge* Input(int stage, ActionKind kind) {
    if (kind == ActionKind::kForward && stage > 0) return &down_[stage - 1];
    if (kind == ActionKind::kBackward && stage < last_) return &up_[stage];
    return nullptr;
  }
  Edge* Output(int stage, ActionKind kind) {
    if (kind == ActionKind::kForward && stage < last_) return &down_[stage];
    if (kind == ActionKind::kBackward && stage > 0) return &up_[stage - 1];
    return nullptr;
  }

  double Scale(int micro_batch) const {
    return options_.scale.empty() ? 1 : options_.scale[micro_batch];
  }

  double Seconds(int stage, const Action& action) const {
    const StageCosts& costs = options_.costs[stage];
    const double seconds = action.kind == ActionKind::kForward     ? costs.forward_s
                           : action.kind == ActionKind::kRecompute ? costs.recompute_s
                                                                   : costs.backward_s;
    return seconds * Scale(action.micro_batch);
  }

  // Does the stage's next thing; false if it must wait or has done all.
  bool Advance(int k) {
    Stage& stage = stages_[k];
    if (stage.next == schedule_[k].size()) return false;
    const Action& action = schedule_[k][stage.next];
    if (!stage.sending && !Compute(k, action)) return false;
    stage.sending = true;
    if (!Send(k, action)) return false;
    stage.sending = false;
    ++stage.next;
    return true;
  }

  bool Compute(int k, const Action& action) {
    Stage& stage = stages_[k];
    double start_s = stage.free_s;
    if (Edge* edge = Input(k, action.kind); edge != nullptr) {
      const double arrival_s = edge->arrival_s[action.micro_batch];
      if (arrival_s == kNotSent) return false;
      start_s = std::max(start_s, arrival_s);
      edge->taken_s.push_back(start_s);
      if (stages_[edge->sender].sending) ready_.push_back(edge->sender);
    }
    stage.free_s = start_s + Seconds(k, action);
    replay_.times[k].push_back({start_s, stage.free_s});
    return true;
  }

  // The j-th tensor needs the (j − credits)-th to have been taken.
  bool Send(int k, const Action& action) {
    Edge* edge = Output(k, action.kind);
    if (edge == nullptr) return true;
    double& free_s = stages_[k].free_s;
    const int must_be_taken = edge->sent - options_.credits;
    if (must_be_taken >= 0) {
      if (static_cast<int>(edge->taken_s.size()) <= must_be_taken) return false;
      free_s = std::max(free_s, edge->taken_s[must_be_taken]);
    }
    ++edge->sent;
    edge->free_s = std::max(edge->free_s, free_s) + edge->seconds * Scale(action.micro_batch);
    edge->arrival_s[action.micro_batch] = edge->free_s;
    ready_.push_back(edge->receiver);
    return true;
  }

  Waiting WaitingOf(int k) {
    const Stage& stage = stages_[k];
    const Action& action = schedule_[k][stage.next];
    const char* tensor = action.kind == ActionKind::kForward ? "activation" : "gradient";
    const int on = stage.sending ? Output(k, action.kind)->receiver : Input(k, action.kind)->sender;
    const std::string what =
        stage.sending ? absl::StrCat("for a credit to send the ", tensor, " of micro-batch ",
                                     action.micro_batch, " to stage ", on)
                      : absl::StrCat("for the ", tensor, " of micro-batch ", action.micro_batch,
                                     " from stage ", on);
    return {k, on, stage.next, what};
  }

  const Schedule& schedule_;
  const ReplayOptions& options_;
  const int last_;
  std::vector<Stage> stages_;
  std::vector<Edge> down_, up_;  // [k]: between stages k and k + 1
  std::deque<int> ready_;        // stages that may be able to go on
  Replay replay_;
};

}  // namespace

Replay ReplaySchedule(const Schedule& schedule, int micro_batches, const ReplayOptions& options) {
  return Replayer(schedule, micro_batches, options).Run();
}

}  // namespace headrace
