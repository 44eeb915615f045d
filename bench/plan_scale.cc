// Times the planner and its simulator at a size no cluster here has: what bench/cost_of_scale.py
// reports. One line of JSON: seconds of processor time, the least of --rounds.
#include <google/protobuf/text_format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <ctime>
#include <functional>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "plan/planner/planner.h"
#include "plan/planner/schedule/schedule.h"
#include "plan/planner/simulate.h"

namespace headrace {
namespace {

struct Flags {
  int layers = 10'000, workers = 1'000, micro_batches = 128, rounds = 3;
  int simulated_stages = 1'000, simulated_micro_batches = 4'000;
};

v1::JobSpec Job(const Flags& flags, int64_t stages) {
  v1::JobSpec spec;
  google::protobuf::TextFormat::ParseFromString(
      R"pb(
        name: "deep"
        model {
          family: MODEL_FAMILY_GPT2
          vocab_size: 32000
          n_embd: 2048
          n_head: 16
          n_positions: 1024
        }
        data { text: "x" tokenizer: TOKENIZER_BYTE }
        training {
          steps: 1
          sequence_length: 1024
          optimizer { kind: OPTIMIZER_KIND_ADAMW learning_rate: 0.001 }
        }
        pipeline { schedule: SCHEDULE_KIND_1F1B }
      )pb",
      &spec);
  spec.mutable_model()->set_n_layer(flags.layers - 2);
  spec.mutable_training()->set_batch_size(flags.micro_batches);
  spec.mutable_training()->set_micro_batches(flags.micro_batches);
  spec.mutable_pipeline()->set_stages(stages);
  return spec;
}

// `kinds` different speeds and sizes, in turn.
std::vector<PlanWorker> Workers(const Flags& flags, int kinds) {
  std::vector<PlanWorker> workers;
  for (int i = 0; i < flags.workers; ++i) {
    PlanWorker& worker = workers.emplace_back();
    worker.name = absl::StrCat("w", i);
    const int kind = i % kinds;
    worker.flops_per_second = 50e9 * (1 + kind);
    worker.memory_limit_bytes = (int64_t{512} + 16 * kind) << 30;
  }
  return workers;
}

// The same, and each worker's layers measured, at a speed of its own.
std::vector<PlanWorker> MeasuredWorkers(const Flags& flags) {
  std::vector<PlanWorker> workers = Workers(flags, flags.workers);
  for (PlanWorker& worker : workers) {
    const double layer_s = 1e9 / worker.flops_per_second;
    for (const LayerKind kind : {LayerKind::kEmbedding, LayerKind::kGpt2Block, LayerKind::kHead}) {
      worker.measured.push_back({kind, layer_s, layer_s, 2 * layer_s});
    }
  }
  return workers;
}

double Seconds(int rounds, const std::function<bool()>& work) {
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < rounds; ++i) {
    const std::clock_t start = std::clock();
    if (!work()) return -1;
    least = std::min(least, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  }
  return least;
}

double PlanSeconds(const Flags& flags, int64_t stages, const std::vector<PlanWorker>& workers) {
  const v1::JobSpec spec = Job(flags, stages);
  return Seconds(flags.rounds, [&] {
    const auto plan = PlanJob(spec, nullptr, workers);
    if (!plan.ok()) std::cerr << "plan_scale: " << plan.status().message() << "\n";
    return plan.ok();
  });
}

double SimulateSeconds(const Flags& flags) {
  const int micro_batches = flags.simulated_micro_batches;
  const ScheduleShape shape = {flags.simulated_stages, micro_batches, v1::RECOMPUTE_MODE_NEVER};
  ReplayOptions options;
  options.costs.assign(shape.stages, {1, 1, 2, 0.1, 0.1});
  return Seconds(1, [&] {
    const Schedule schedule = MakeSchedule(v1::SCHEDULE_KIND_1F1B, shape);
    return Simulate(schedule, micro_batches, options).ok();
  });
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Times plans of many layers on many workers.");
  app.add_option("--layers", flags.layers);
  app.add_option("--workers", flags.workers);
  app.add_option("--micro-batches", flags.micro_batches);
  app.add_option("--simulated-stages", flags.simulated_stages);
  app.add_option("--simulated-micro-batches", flags.simulated_micro_batches);
  app.add_option("--rounds", flags.rounds);
  CLI11_PARSE(app, argc, argv);
  const std::vector<PlanWorker> equal = Workers(flags, 1), unequal = Workers(flags, flags.workers);
  std::cout << nlohmann::json{{"equal_s", PlanSeconds(flags, flags.workers, equal)},
                              {"two_kinds_s", PlanSeconds(flags, flags.workers, Workers(flags, 2))},
                              {"unequal_s", PlanSeconds(flags, flags.workers, unequal)},
                              {"measured_s",
                               PlanSeconds(flags, flags.workers, MeasuredWorkers(flags))},
                              {"auto_s", PlanSeconds(flags, 0, equal)},
                              {"auto_unequal_s", PlanSeconds(flags, 0, unequal)},
                              {"simulate_s", SimulateSeconds(flags)}}
            << "\n";
  return 0;
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) { return headrace::Main(argc, argv); }
