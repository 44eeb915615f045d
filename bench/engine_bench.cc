// Trains what peer_input wrote on one thread in one process: the real layers, ops and optimizer,
// without executor, links and RPC. Reads and prints what bench/peers/gpt2_torch.py does:
//
//   engine_bench FOLDER [--steps N] [--micro-batches M] [--threads T] [--precision P] [--paced]
//                [--ops]
//
// P: fp32, bf16 or bf16_emulated. One JSON object a line: what runs, then for each step
// {"step", "loss", "seconds", "roof_flops"}, the last one measured right behind the step
// (fma_roof.h). --paced: waits for a line on standard input before each step, so that sides can be
// measured in turn. --ops: at the end where the time of all steps but the first went, op by op.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/fma_roof.h"
#include "bench/timed_ops.h"
#include "common/process.h"
#include "plan/batch.h"
#include "plan/stage_memory.h"
#include "worker/backend/arena.h"
#include "worker/backend/carved_ops.h"
#include "worker/layers/stage_model.h"
#include "worker/optimizer/optimizer.h"

namespace headrace {
namespace {

using Json = nlohmann::json;

struct Flags {
  std::string folder;
  int64_t steps = 0, micro_batches = 0;  // 0: the job's
  int threads = 1;
  Precision precision = Precision::kFp32;
  bool paced = false, ops = false;
};

template <typename T>
std::vector<T> Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  std::vector<T> values(static_cast<size_t>(file.tellg()) / sizeof(T));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(values.data()),
            static_cast<std::streamsize>(values.size() * sizeof(T)));
  if (!file) throw std::runtime_error("cannot read " + path);
  return values;
}

Model ReadModel(const Json& json) {
  Model m;
  m.layers = json["n_layer"], m.width = json["n_embd"], m.heads = m.kv_heads = json["n_head"];
  m.head_size = m.width / m.heads, m.mlp_width = json["n_inner"], m.context = json["n_positions"];
  m.vocabulary = json["vocab_size"], m.tied = json["tied"];
  m.norm_epsilon = json["layer_norm_epsilon"];
  return m;
}

v1::TrainingSpec ReadTraining(const Json& json) {
  v1::TrainingSpec training;
  training.set_steps(json["steps"]);
  v1::OptimizerSpec& optimizer = *training.mutable_optimizer();
  optimizer.set_kind(v1::OPTIMIZER_KIND_ADAMW);
  optimizer.set_learning_rate(json["learning_rates"][0]);
  optimizer.set_weight_decay(json["weight_decay"]);
  optimizer.set_beta1(json["beta1"]);
  optimizer.set_beta2(json["beta2"]);
  optimizer.set_epsilon(json["epsilon"]);
  return training;
}

class Engine {
 public:
  explicit Engine(const Flags& flags)
      : job_(Json::parse(std::ifstream(flags.folder + "/job.json"))),
        tokens_(Read<int32_t>(flags.folder + "/tokens.bin")) {
    const Json& training = job_["training"];
    length_ = training["sequence_length"];
    const int64_t micro_batches =
        flags.micro_batches > 0 ? flags.micro_batches : training["micro_batches"].get<int64_t>();
    sizes_ = SplitBatch(training["batch_size"], micro_batches).value();
    stage_.model = ReadModel(job_["model"]);
    stage_.layers = BuildLayers(stage_.model);
    stage_.largest = {*std::max_element(sizes_.begin(), sizes_.end()), length_};
    stage_.threads = flags.threads;
    stage_.precision = flags.precision;
    const StageBytes bytes = StageMemory(stage_, ParseActions("0F0 0B0").value());
    arena_ = Arena::Create(bytes.total()).value();
    cpu_ = CarveCpuOps(flags.precision, flags.threads, arena_.get()).value();
    timed_ = std::make_unique<TimedOps>(cpu_.get());
    ops_ = flags.ops ? timed_.get() : cpu_.get();
    model_ = StageModel::Create(stage_, arena_.get(), ops_).value();
    Load(Read<float>(flags.folder + "/weights.bin"));
    optimizer_ =
        Optimizer::Create(ReadTraining(training), &model_->parameters(), arena_.get(), ops_)
            .value();
    boundary_ = arena_->CarvePool("boundary", BoundaryBytes(stage_), 1).value();
    working_set_ = arena_->CarvePool("working set", WorkingSetBytes(stage_), 1).value();
    targets_.resize(static_cast<size_t>(stage_.largest.tokens()));
  }

  int64_t tokens() const { return job_["training"]["batch_size"].get<int64_t>() * length_; }
  int64_t steps() const { return job_["training"]["steps"]; }
  const Model& model() const { return stage_.model; }
  TimedOps& timed() { return *timed_; }

  // One mini-batch; its mean loss.
  double Step(int64_t step) {
    model_->ZeroGradients();
    double loss = 0;
    int64_t first = 0;
    for (size_t m = 0; m < sizes_.size(); ++m) {
      loss += RunMicroBatch(step, static_cast<int64_t>(m), first);
      first += sizes_[m];
    }
    AddTie();
    optimizer_->Step(step, Clip());
    return loss / static_cast<double>(tokens());
  }

 private:
  void Load(const std::vector<float>& weights) {
    size_t at = 0;
    for (const Parameter& p : model_->parameters()) {
      if (p.borrowed) continue;
      if (at + static_cast<size_t>(p.weight.elements()) > weights.size()) {
        throw std::runtime_error("weights.bin is too short");
      }
      std::memcpy(p.weight.data, weights.data() + at, static_cast<size_t>(p.weight.bytes()));
      at += static_cast<size_t>(p.weight.elements());
    }
  }

  double RunMicroBatch(int64_t step, int64_t m, int64_t first) {
    const Slot boundary = boundary_->Acquire(MemoryKind::kStash).value();
    const Slot kept = working_set_->Acquire(MemoryKind::kStash).value();
    int32_t* ids = static_cast<int32_t*>(boundary.data());
    MicroBatch mb{.shape = {sizes_[static_cast<size_t>(m)], length_}, .step = step};
    mb.micro_batch = m;
    for (int64_t s = 0; s < mb.shape.sequences; ++s) {
      const int32_t* from =
          tokens_.data() + ((step - 1) * (tokens() / length_) + first + s) * (length_ + 1);
      std::copy(from, from + length_, ids + s * length_);
      std::copy(from + 1, from + 1 + length_, targets_.data() + s * length_);
    }
    mb.targets = targets_.data();
    mb.loss_scale = 1.0f / static_cast<float>(tokens());
    double loss = 0;
    mb.loss = &loss;
    model_->Forward(mb, ids, nullptr, kept.data());
    model_->Backward(mb, ids, kept.data(), nullptr, nullptr);
    return loss;
  }

  void AddTie() {
    const Parameter& borrowed = model_->parameters().back();
    if (!borrowed.borrowed) return;
    const Tensor& owner = model_->parameters().front().gradient;
    ops_->Add(owner.f32(), borrowed.gradient.f32(), owner.f32(), owner.elements());
  }

  double Clip() {
    double sum = 0;
    for (const Parameter& p : model_->parameters()) {
      if (p.borrowed) continue;
      double squared = 0;
      ops_->SquaredNorm(p.gradient.f32(), p.gradient.elements(), &squared);
      sum += squared;
    }
    const double clip = job_["training"]["clip_norm"];
    return clip > 0 ? std::min(1.0, clip / (std::sqrt(sum) + 1e-6)) : 1.0;
  }

  const Json job_;
  const std::vector<int32_t> tokens_;
  int64_t length_ = 0;
  std::vector<int64_t> sizes_;
  StageShape stage_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Ops> cpu_;
  std::unique_ptr<TimedOps> timed_;
  Ops* ops_ = nullptr;  // one of them
  std::unique_ptr<StageModel> model_;
  std::unique_ptr<Optimizer> optimizer_;
  Pool* boundary_ = nullptr;
  Pool* working_set_ = nullptr;
  std::vector<int32_t> targets_;
};

// 6 a parameter of the matrices, and attention without regard to its mask, as papers count.
double FlopsPerToken(const Model& m, int64_t length) {
  const double d = static_cast<double>(m.width), layers = static_cast<double>(m.layers);
  const double block = 4 * d * d + 2 * d * static_cast<double>(m.mlp_width);
  return 6 * (layers * block + static_cast<double>(m.vocabulary) * d) +
         12 * layers * static_cast<double>(length) * d;
}

void Run(const Flags& flags) {
  Engine engine(flags);
  const Model& m = engine.model();
  const int64_t steps = flags.steps > 0 ? flags.steps : engine.steps();
  const Json about = {{"threads", flags.threads},
                      {"tokens", engine.tokens()},
                      {"flops_per_token", FlopsPerToken(m, m.context)}};
  std::cout << about << std::endl;
  using Timer = std::chrono::steady_clock;
  for (int64_t step = 1; step <= std::min(steps, engine.steps()); ++step) {
    std::string line;
    if (flags.paced && !std::getline(std::cin, line)) break;
    if (step == 2) engine.timed().Clear();
    const auto start = Timer::now();
    const double loss = engine.Step(step);
    const double seconds = std::chrono::duration<double>(Timer::now() - start).count();
    const Json done = {
        {"step", step}, {"loss", loss}, {"seconds", seconds}, {"roof_flops", FmaRoof(2)}};
    std::cout << done << std::endl;
  }
  if (!flags.ops) return;
  Json ops = Json::array();
  for (const auto& [name, time] : engine.timed().times()) {
    ops.push_back(
        {{"name", name}, {"calls", time.calls}, {"seconds", time.seconds}, {"flops", time.flops}});
  }
  std::cout << Json{{"ops", ops}} << std::endl;
}

bool Parse(int argc, char** argv, Flags* flags) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto number = [&] { return i + 1 < argc ? std::stoll(argv[++i]) : -1; };
    if (word == "--steps") {
      if ((flags->steps = number()) < 1) return false;
    } else if (word == "--micro-batches") {
      if ((flags->micro_batches = number()) < 1) return false;
    } else if (word == "--threads") {
      if ((flags->threads = static_cast<int>(number())) < 1) return false;
    } else if (word == "--precision") {
      const std::string name = i + 1 < argc ? argv[++i] : "";
      if (name == "bf16" && CpuMultipliesBf16()) {
        flags->precision = Precision::kBf16;
      } else if (name == "bf16_emulated") {
        flags->precision = Precision::kBf16Emulated;
      } else if (name != "fp32") {
        return false;
      }
    } else if (word == "--paced") {
      flags->paced = true;
    } else if (word == "--ops") {
      flags->ops = true;
    } else if (flags->folder.empty() && word[0] != '-') {
      flags->folder = word;
    } else {
      return false;
    }
  }
  return !flags->folder.empty();
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  headrace::Flags flags;
  try {
    if (!headrace::Parse(argc, argv, &flags)) {
      std::cerr
          << "usage: engine_bench FOLDER [--steps N] [--micro-batches M] [--threads T] "
             "[--precision fp32|bf16|bf16_emulated] [--paced] [--ops]; bf16 where the CPU has it\n";
      return 2;
    }
    headrace::TuneMalloc();  // as the worker does
    headrace::Run(flags);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "engine_bench: " << flags.folder << ": " << error.what() << "\n";
    return 1;
  }
}
