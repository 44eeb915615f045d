#include "client/render/plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/console.h"
#include "client/job_keys.h"
#include "client/render/human.h"
#include "client/render/table.h"
#include "common/flags.h"
#include "plan/device_kind.h"
#include "plan/sim_device.h"

namespace headrace {
namespace {

constexpr double kExposedShown = 0.01;  // of a step

std::string LayerName(const v1::Plan& plan, int64_t layer) {
  if (layer >= 0 && layer < plan.layer_names_size())
    return plan.layer_names(static_cast<int>(layer));
  return absl::StrCat("layer ", layer);
}

std::string Layers(const v1::Plan& plan, const v1::StagePlan& stage) {
  const std::string first = LayerName(plan, stage.first_layer());
  if (stage.end_layer() - stage.first_layer() <= 1) return first;
  return absl::StrCat(first, " … ", LayerName(plan, stage.end_layer() - 1));
}

// "8 × 4 sequences", or "2 × 3 + 6 × 2 sequences" where they differ.
std::string Sequences(const v1::Plan& plan) {
  std::vector<std::string> parts;
  const auto& sizes = plan.micro_batch_sequences();
  for (auto it = sizes.begin(); it != sizes.end();) {
    const auto next = std::find_if(it, sizes.end(), [&](int64_t n) { return n != *it; });
    parts.push_back(absl::StrCat(next - it, " × ", *it));
    it = next;
  }
  return absl::StrCat(absl::StrJoin(parts, " + "), " sequences");
}

template <typename Enum>
std::string Word(Enum value, const google::protobuf::EnumDescriptor* type) {
  const auto* descriptor = type->FindValueByNumber(value);
  return descriptor == nullptr ? absl::StrCat(static_cast<int>(value)) : EnumWord(*descriptor);
}

// ", precision bf16 (emulated)", ", precision fp32 (TF32 on CUDA devices)"; nothing in a plan older
// than precisions.
std::string Precision(const v1::Plan& plan) {
  if (plan.precision() == v1::PRECISION_UNSPECIFIED) return "";
  return absl::StrCat(", precision ", Word(plan.precision(), v1::Precision_descriptor()),
                      plan.bf16_emulate() ? " (emulated)" : "",
                      plan.tf32() ? " (TF32 on CUDA devices)" : "");
}

// How tensors travel between stages, where there is anything to say about it.
std::string Boundaries(const v1::Plan& plan) {
  if (plan.stages() < 2) return "";
  const bool bf16 = plan.boundary_dtype() == v1::BOUNDARY_DTYPE_BF16;
  // CUDA devices keep activations in the job's precision: nothing is left to be rounded.
  const bool exact =
      plan.precision() == v1::PRECISION_BF16 &&
      std::all_of(plan.stage().begin(), plan.stage().end(), [](const v1::StagePlan& stage) {
        return DeviceKindOf(stage.device()) == DeviceKind::kCuda;
      });
  if (bf16) {
    return absl::StrCat("boundaries bf16: half the bytes between stages; numbers ",
                        exact ? "are fp32's, for all stages keep activations in bf16\n"
                              : "differ from fp32's and depend on where stages begin\n");
  }
  return exact ? "boundaries fp32: pipeline.boundary_dtype: bf16 would halve the bytes between "
                 "stages with the same numbers, for all stages keep activations in bf16\n"
               : "";
}

// What the predicted seconds rest on; nothing where a stage does not say.
std::string Costed(const v1::Plan& plan) {
  bool flops = false, measured = false;
  for (const v1::StagePlan& stage : plan.stage()) {
    const v1::CostSource source = stage.cost_source();
    flops |= source == v1::COST_SOURCE_FLOPS || source == v1::COST_SOURCE_MIXED;
    measured |= source == v1::COST_SOURCE_MEASURED || source == v1::COST_SOURCE_MIXED;
  }
  if (!flops && !measured) return "";
  if (!measured) return " by FLOPs";
  return flops ? " by measured layers and FLOPs" : " by measured layers";
}

std::string StageTable(const v1::Plan& plan, int width) {
  Table table({{"STAGE", Align::kRight},
               {"WORKER"},
               {"LAYERS"},
               {"PARAMETERS", Align::kRight},
               {"FORWARD", Align::kRight},
               {"BACKWARD", Align::kRight},
               {"MEMORY", Align::kRight},
               {"LIMIT", Align::kRight}});
  for (const v1::StagePlan& stage : plan.stage()) {
    const std::string on =
        stage.device().empty() ? "" : absl::StrCat(" (", Printable(stage.device()), ")");
    table.Add({absl::StrCat(stage.stage()), absl::StrCat(stage.worker(), on), Layers(plan, stage),
               FormatCount(static_cast<double>(stage.parameters())),
               FormatSeconds(stage.forward_s()), FormatSeconds(stage.backward_s()),
               FormatBytes(TotalBytes(stage.memory())), FormatBytes(stage.memory_limit_bytes())});
  }
  return table.Render(width, 2);
}

std::vector<std::string> MemoryCells(const v1::MemoryBytes& memory) {
  return {FormatBytes(memory.weights()),   FormatBytes(memory.gradients()),
          FormatBytes(memory.optimizer()), FormatBytes(memory.stash()),
          FormatBytes(memory.workspace()), FormatBytes(memory.link()),
          FormatBytes(TotalBytes(memory))};
}

std::string MemoryTable(const v1::Plan& plan, const std::vector<v1::MemoryBytes>& measured,
                        int width) {
  Table table({{"STAGE", Align::kRight},
               {"", Align::kRight},  // never cut
               {"WEIGHTS", Align::kRight},
               {"GRADIENTS", Align::kRight},
               {"OPTIMIZER", Align::kRight},
               {"STASH", Align::kRight},
               {"WORKSPACE", Align::kRight},
               {"LINK", Align::kRight},
               {"TOTAL", Align::kRight}});
  const auto add = [&](std::string stage, std::string what, const v1::MemoryBytes& memory) {
    std::vector<std::string> cells = {std::move(stage), std::move(what)};
    for (std::string& cell : MemoryCells(memory)) cells.push_back(std::move(cell));
    table.Add(std::move(cells));
  };
  for (int k = 0; k < plan.stage_size(); ++k) {
    add(absl::StrCat(plan.stage(k).stage()), "predicted", plan.stage(k).memory());
    if (k < static_cast<int>(measured.size())) add("", "measured", measured[k]);
  }
  return table.Render(width, 2);
}

// Says of a simulation that it is one, and what its devices declare; empty for real workers.
std::string SimulatedLine(const v1::Plan& plan) {
  if (plan.stage_size() == 0 || !plan.stage(0).has_sim()) return "";
  std::vector<std::string> devices;
  for (const v1::StagePlan& stage : plan.stage()) {
    std::string device = DescribeSim(stage.sim());
    if (devices.empty() || devices.back() != device) devices.push_back(std::move(device));
  }
  constexpr size_t kShown = 3;
  const bool more = devices.size() > kShown;
  if (more) devices.resize(kShown);
  return absl::StrCat("SIMULATED  actions take declared time, losses are 0, nothing is trained: ",
                      absl::StrJoin(devices, "; "), more ? "; …" : "", "\n");
}

// Where a tensor is longer on its way than its receiver works on one: no schedule hides that.
std::string SlowLinks(const v1::Plan& plan) {
  std::string out;
  const auto compare = [&](const char* what, int from, int to, double way_s) {
    const v1::StagePlan& receiver = plan.stage(to);
    const double recompute_s =
        plan.recompute() == v1::RECOMPUTE_MODE_NEVER ? 0 : receiver.recompute_s();
    const double work_s = receiver.forward_s() + recompute_s + receiver.backward_s();
    if (way_s <= work_s || way_s <= 0) return;
    absl::StrAppend(&out, "slow link  the ", what, " from stage ", from, " takes ",
                    FormatSeconds(way_s), " a micro-batch, longer than the ", FormatSeconds(work_s),
                    " stage ", to, " works on one: the link sets the pace\n");
  };
  for (int k = 0; k + 1 < plan.stage_size(); ++k) {
    compare("activation", k, k + 1, plan.stage(k).activation_s());
    compare("gradient", k + 1, k, plan.stage(k + 1).gradient_s());
  }
  return out;
}

// What links cost a step, and what would make it less.
std::string ExposedLinks(const v1::Plan& plan) {
  if (plan.exposed_s() < kExposedShown * plan.step_s() || plan.exposed_s() <= 0) return "";
  std::string out = absl::StrCat("links      expose ", FormatSeconds(plan.exposed_s()),
                                 " of a step, ", FormatShare(plan.exposed_s() / plan.step_s()));
  if (plan.has_link_advice()) {
    const v1::LinkAdvice& advice = plan.link_advice();
    absl::StrAppend(&out, "; ", FormatShare(1 - advice.compute_share()),
                    " with training.micro_batches: ", advice.micro_batches(),
                    " and training.batch_size: ", advice.batch_size(), " (as large micro-batches)");
  }
  return absl::StrCat(out, "\n");
}

}  // namespace

int64_t TotalBytes(const v1::MemoryBytes& memory) {
  return memory.weights() + memory.gradients() + memory.optimizer() + memory.stash() +
         memory.workspace() + memory.link();
}

std::string RenderPlan(const v1::Plan& plan, const std::vector<v1::MemoryBytes>& measured,
                       int width) {
  std::string out =
      absl::StrCat("plan       ", plan.stages(), plan.stages() == 1 ? " stage, " : " stages, ",
                   plan.micro_batches(), " micro-batches (", Sequences(plan), "), schedule ",
                   Word(plan.schedule(), v1::ScheduleKind_descriptor()), ", recompute ",
                   Word(plan.recompute(), v1::RecomputeMode_descriptor()), Precision(plan), "\n");
  absl::StrAppend(&out, "predicted  ", FormatSeconds(plan.step_s()), " a step", Costed(plan),
                  ", bubble ", FormatShare(plan.bubble()),
                  " beside (K−1)/(M+K−1) = ", FormatShare(plan.ideal_bubble()), "; ",
                  FormatCount(static_cast<double>(plan.parameters())), " parameters\n");
  absl::StrAppend(&out, Boundaries(plan), SimulatedLine(plan), SlowLinks(plan), ExposedLinks(plan),
                  "\n");
  absl::StrAppend(&out, StageTable(plan, width), "\nmemory\n", MemoryTable(plan, measured, width));
  if (!plan.grid().empty()) {
    absl::StrAppend(&out, "\nschedule\n");
    for (const absl::string_view line : absl::StrSplit(plan.grid(), '\n', absl::SkipEmpty())) {
      absl::StrAppend(&out, "  ", line, "\n");
    }
  }
  return out;
}

}  // namespace headrace
