#include "client/picture/plan_gantt.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/job_keys.h"
#include "client/render/human.h"
#include "common/status.h"
#include "plan/replay.h"

namespace headrace {
namespace {

constexpr int kDefaultCredits = 2;

BarKind KindOf(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return BarKind::kForward;
    case ActionKind::kRecompute:
      return BarKind::kRecompute;
    case ActionKind::kBackward:
      return BarKind::kBackward;
  }
  return BarKind::kForward;
}

ReplayOptions OptionsOf(const v1::Plan& plan, const v1::PipelineSpec& pipeline) {
  ReplayOptions options;
  for (const v1::StagePlan& stage : plan.stage()) {
    StageCosts costs;
    costs.forward_s = stage.forward_s();
    costs.recompute_s = stage.recompute_s();
    costs.backward_s = stage.backward_s();
    costs.activation_s = stage.activation_s();
    costs.gradient_s = stage.gradient_s();
    options.costs.push_back(costs);
  }
  const auto& sizes = plan.micro_batch_sequences();
  const double largest =
      sizes.empty() ? 1 : static_cast<double>(*std::max_element(sizes.begin(), sizes.end()));
  for (const int64_t size : sizes) options.scale.push_back(static_cast<double>(size) / largest);
  options.credits = pipeline.credits() > 0 ? static_cast<int>(pipeline.credits()) : kDefaultCredits;
  return options;
}

GanttRow RowOf(const v1::StagePlan& stage, const std::vector<Action>& actions,
               const std::vector<ActionTime>& times, double end_s) {
  GanttRow row;
  row.label = absl::StrCat("stage ", stage.stage());
  double free_s = 0;
  for (size_t i = 0; i < times.size(); ++i) {
    if (times[i].start_s > free_s) {
      row.bars.push_back({BarKind::kWait, -1, free_s, times[i].start_s});
    }
    row.bars.push_back(
        {KindOf(actions[i].kind), actions[i].micro_batch, times[i].start_s, times[i].end_s});
    free_s = times[i].end_s;
  }
  if (free_s < end_s) row.bars.push_back({BarKind::kWait, -1, free_s, end_s});
  return row;
}

}  // namespace

std::string ScheduleWords(const v1::Plan& plan) {
  const auto word = [](const google::protobuf::EnumDescriptor& type, int number) {
    const auto* value = type.FindValueByNumber(number);
    return value == nullptr ? absl::StrCat(number) : EnumWord(*value);
  };
  return absl::StrCat("K = ", plan.stages(), plan.stages() == 1 ? " stage" : " stages",
                      ", M = ", plan.micro_batches(),
                      plan.micro_batches() == 1 ? " micro-batch, " : " micro-batches, ",
                      word(*v1::ScheduleKind_descriptor(), plan.schedule()), ", recompute ",
                      word(*v1::RecomputeMode_descriptor(), plan.recompute()));
}

absl::StatusOr<Gantt> PlanGantt(const v1::Plan& plan, const v1::PipelineSpec& pipeline,
                                const std::string& job) {
  Schedule schedule;
  for (const v1::StagePlan& stage : plan.stage()) {
    HEADRACE_ASSIGN_OR_RETURN(schedule.emplace_back(), ParseActions(stage.actions()));
  }
  const ReplayOptions options = OptionsOf(plan, pipeline);
  const int micro_batches = static_cast<int>(plan.micro_batches());
  if (!options.scale.empty() && plan.micro_batches() != static_cast<int>(options.scale.size())) {
    return absl::InvalidArgumentError("the plan's micro-batches have no sizes");
  }
  for (size_t k = 0; k < schedule.size(); ++k) {
    HEADRACE_RETURN_IF_ERROR(CheckActions(schedule[k], static_cast<int>(k), micro_batches));
  }
  const Replay replay = ReplaySchedule(schedule, micro_batches, options);
  if (!replay.waiting.empty()) return CheckSchedule(schedule, micro_batches, options.credits);
  double end_s = 0;
  for (const auto& times : replay.times) end_s = std::max(end_s, times.back().end_s);

  Gantt gantt;
  gantt.title = absl::StrCat("Schedule of ", job, ", predicted");
  gantt.subtitle = absl::StrCat(ScheduleWords(plan), ". Step ", FormatSeconds(plan.step_s()),
                                ", bubble ", FormatShare(plan.bubble()),
                                "; (K−1)/(M+K−1) = ", FormatShare(plan.ideal_bubble()));
  for (int k = 0; k < plan.stage_size(); ++k) {
    gantt.rows.push_back(RowOf(plan.stage(k), schedule[k], replay.times[k], end_s));
  }
  return gantt;
}

}  // namespace headrace
