#include "plan/planner/stage_table.h"

#include <algorithm>
#include <map>
#include <utility>

#include "common/status.h"
#include "plan/batch.h"
#include "plan/cuda_memory.h"
#include "plan/planner/schedule/schedule.h"
#include "plan/sim_device.h"

namespace headrace {
namespace {

constexpr int64_t kDefaultCredits = 2;

// `value(layer)` of each layer. Layers of a kind are alike, so one of each is asked.
template <typename T, typename Value>
std::vector<T> OfEach(const JobShape& job, const Value& value) {
  std::map<LayerKind, T> of_kind;
  std::vector<T> all;
  all.reserve(job.layers.size());
  for (const LayerSpec& layer : job.layers) {
    auto at = of_kind.find(layer.kind);
    if (at == of_kind.end()) at = of_kind.emplace(layer.kind, value(layer)).first;
    all.push_back(at->second);
  }
  return all;
}

template <typename T>
void Append(std::vector<T>* sums, T value) {
  sums->push_back(sums->back() + value);
}

// Rotary tables are one pair a stage, not a layer.
int64_t SharedWeightBytes(const JobShape& job) { return 2 * RopeTableBytes(job.model); }

int64_t StateBytesOf(const JobShape& job, const std::vector<LayerSpec>& layers, const Layout& on) {
  int64_t bytes = WeightBytes(job.model, layers, on);
  if (job.training) bytes += GradientBytes(layers) + OptimizerBytes(layers, job.optimizer_moments);
  return bytes;
}

struct LayerNumbers {
  double forward_flops = 0, recompute_flops = 0, backward_flops = 0;
};

LayerNumbers NumbersOf(const JobShape& job, const LayerSpec& layer) {
  LayerNumbers numbers;
  numbers.forward_flops = headrace::ForwardFlops(job.model, layer, job.largest);
  numbers.recompute_flops = headrace::RecomputeFlops(job.model, layer, job.largest);
  numbers.backward_flops = headrace::BackwardFlops(job.model, layer, job.largest);
  return numbers;
}

double LinkSeconds(const WorkerClass& sender, int64_t bytes) {
  if (sender.sim && sender.sim->wire()) return SimLinkSeconds(*sender.sim, bytes);
  return sender.link.latency_s + static_cast<double>(bytes) / sender.link.bytes_per_second;
}

// Seconds of one layer of each kind. What was not measured takes its FLOPs at the speed that the
// measured ones had, which is further from that of bare matrix products than from theirs.
std::vector<MeasuredCost> SecondsOfKinds(const std::vector<LayerTable::Kind>& kinds,
                                         const std::vector<MeasuredCost>& measured) {
  double flops = 0, seconds = 0;
  for (const LayerTable::Kind& kind : kinds) {
    const MeasuredCost* cost = FindCost(measured, kind.kind);
    if (cost == nullptr) continue;
    flops += kind.forward_flops + kind.recompute_flops + kind.backward_flops;
    seconds += cost->forward_s + cost->recompute_s + cost->backward_s;
  }
  if (flops <= 0 || seconds <= 0) return {};
  const double s = seconds / flops;
  std::vector<MeasuredCost> all;
  for (const LayerTable::Kind& kind : kinds) {
    const MeasuredCost* cost = FindCost(measured, kind.kind);
    all.push_back(cost != nullptr
                      ? *cost
                      : MeasuredCost{kind.kind, kind.forward_flops * s, kind.recompute_flops * s,
                                     kind.backward_flops * s});
  }
  return all;
}

}  // namespace

StageShape JobShape::Stage(int stage, int num_stages, const Cell& cell, const Compute& on) const {
  StageShape shape;
  shape.model = model;
  shape.layers.assign(layers.begin() + cell.first, layers.begin() + cell.end);
  shape.stage = stage;
  shape.num_stages = num_stages;
  shape.largest = largest;
  shape.optimizer_moments = optimizer_moments;
  shape.credits = credits;
  shape.threads = on.threads;
  shape.device = on.device;
  shape.training = training;
  shape.bf16_boundaries = bf16_boundaries;
  shape.precision = precision;
  shape.recomputes = recomputes();
  shape.micro_batches = micro_batches();
  return shape;
}

bool JobShape::recomputes() const {
  // The first micro-batch is, if any is.
  return !training || Recomputes({1, micro_batches(), recompute}, 0);
}

absl::StatusOr<JobShape> ResolveTraining(const v1::JobSpec& spec) {
  JobShape job;
  HEADRACE_ASSIGN_OR_RETURN(job.model, ResolveModel(spec.model()));
  HEADRACE_ASSIGN_OR_RETURN(job.micro_batch_sequences, SplitBatch(spec.training().batch_size(),
                                                                  spec.training().micro_batches()));
  job.largest = {job.micro_batch_sequences.front(), spec.training().sequence_length()};
  job.layers = BuildLayers(job.model);
  if (spec.pipeline().schedule() != 0) job.schedule = spec.pipeline().schedule();
  if (spec.pipeline().recompute() != 0) job.recompute = spec.pipeline().recompute();
  job.credits = spec.pipeline().credits() > 0 ? spec.pipeline().credits() : kDefaultCredits;
  job.optimizer_moments = OptimizerMoments(spec.training().optimizer());
  job.bf16_boundaries = spec.pipeline().boundary_dtype() == v1::BOUNDARY_DTYPE_BF16;
  job.precision = PrecisionOf(spec.training());
  job.tf32 = spec.training().tf32();
  return job;
}

absl::StatusOr<JobShape> ResolveGenerate(const v1::JobSpec& spec) {
  JobShape job;
  HEADRACE_ASSIGN_OR_RETURN(job.model, ResolveModel(spec.model()));
  job.micro_batch_sequences = {1};
  job.largest = {1, job.model.context};
  job.layers = BuildLayers(job.model);
  job.recompute = v1::RECOMPUTE_MODE_NEVER;
  job.credits = spec.pipeline().credits() > 0 ? spec.pipeline().credits() : kDefaultCredits;
  job.training = false;
  job.precision = PrecisionOf(spec.training());
  job.tf32 = spec.training().tf32();
  return job;
}

LayerTable::LayerTable(const JobShape* job) : job_(job) {
  for (const LayerNumbers& layer :
       OfEach<LayerNumbers>(*job, [job](const LayerSpec& spec) { return NumbersOf(*job, spec); })) {
    Append(&forward_, layer.forward_flops);
    Append(&recompute_, layer.recompute_flops);
    Append(&backward_, layer.backward_flops);
  }
  shared_weight_bytes_ = SharedWeightBytes(*job);
  recomputes_ = job->recomputes();
  CountKinds();
}

void LayerTable::CountKinds() {
  for (size_t i = 0; i < job_->layers.size(); ++i) {
    const LayerSpec& layer = job_->layers[i];
    auto at = std::find_if(kinds_.begin(), kinds_.end(),
                           [&](const Kind& kind) { return kind.kind == layer.kind; });
    if (at == kinds_.end()) {
      const LayerNumbers numbers = NumbersOf(*job_, layer);
      kinds_.push_back({layer.kind, numbers.forward_flops, numbers.recompute_flops,
                        numbers.backward_flops, layer, std::vector<int>(i + 1)});
    }
    for (Kind& kind : kinds_) {
      kind.before.push_back(kind.before.back() + (kind.kind == layer.kind ? 1 : 0));
    }
  }
}

LayerTable::Sizes LayerTable::SizesOn(const Compute& on) const {
  const JobShape& job = *job_;
  const Layout layout = LayoutOn(on.device, job.precision, on.threads);
  Sizes sizes;
  for (const Kind& kind : kinds_) {
    const LayerSpec& layer = kind.example;
    const bool llama = layer.kind == LayerKind::kLlamaBlock;
    sizes.state.push_back(StateBytesOf(job, {layer}, layout) - (llama ? shared_weight_bytes_ : 0));
    sizes.saved.push_back(SavedBytes(job.model, layer, job.largest, layout));
    sizes.output.push_back(OutputBytes(job.model, layer, job.largest, layout));
    sizes.forward.push_back(ForwardWorkspaceBytes(job.model, layer, job.largest, layout));
    sizes.backward.push_back(BackwardWorkspaceBytes(job.model, layer, job.largest, layout));
    sizes.scratch.push_back(on.device == DeviceKind::kCuda
                                ? CudaScratchBytes(job.model, layer, job.largest, job.precision)
                                : 0);
  }
  sizes.whole_state = StateBytesOf(job, job.layers, layout);
  sizes.two_outputs = 2 * AlignUp(layout.activation_bytes * job.largest.tokens() * job.model.width);
  return sizes;
}

int64_t LayerTable::StateBytes(const Sizes& sizes, int first, int end) const {
  // The only range that holds both ends of a tie, which then share a weight.
  if (first == 0 && end == static_cast<int>(job_->layers.size())) return sizes.whole_state;
  int64_t bytes = 0;
  for (size_t i = 0; i < kinds_.size(); ++i) {
    const int count = kinds_[i].count(first, end);
    bytes += count * sizes.state[i];
    if (count > 0 && kinds_[i].kind == LayerKind::kLlamaBlock) bytes += shared_weight_bytes_;
  }
  return bytes;
}

int64_t LayerTable::OwnParameters(int first, int end) const {
  int64_t parameters = 0;
  for (const Kind& kind : kinds_) {
    parameters += kind.count(first, end) * static_cast<int64_t>(kind.example.parameters.size());
  }
  return parameters;
}

int64_t LayerTable::WorkingSetBytes(const Sizes& sizes, int first, int end) const {
  int64_t bytes = 0;
  for (size_t i = 0; i < kinds_.size(); ++i) {
    // The last layer's output is not kept.
    bytes += kinds_[i].count(first, end) * sizes.saved[i] +
             kinds_[i].count(first, end - 1) * sizes.output[i];
  }
  return bytes;
}

int64_t LayerTable::WorkspaceBytes(const Sizes& sizes, int first, int end) const {
  // As StageWorkspaceBytes (plan/layer_spec.h), and of DeviceBytes (plan/stage_memory.h) what
  // depends on the layers.
  int64_t forward = 0, backward = 0, saved = 0, scratch = 0;
  for (size_t i = 0; i < kinds_.size(); ++i) {
    if (kinds_[i].count(first, end) == 0) continue;
    forward = std::max(forward, sizes.forward[i]);
    backward = std::max(backward, sizes.backward[i]);
    saved = std::max(saved, sizes.saved[i]);
    scratch = std::max(scratch, sizes.scratch[i]);
  }
  if (recomputes_) forward += sizes.two_outputs + saved;
  return scratch + (job_->training ? std::max(forward, sizes.two_outputs + backward) : forward);
}

StageTable::StageTable(LayerTable* layers, const std::vector<WorkerClass>* classes, int num_stages,
                       std::vector<std::vector<StashLevel>> levels)
    : layers_(layers), classes_(classes), num_stages_(num_stages) {
  const JobShape& job = layers->job();
  const ScheduleShape shape = {num_stages, job.micro_batches(), job.recompute};
  int recomputed = 0;
  for (int m = 0; m < job.micro_batches(); ++m) recomputed += Recomputes(shape, m) ? 1 : 0;
  recomputed_share_ = static_cast<double>(recomputed) / job.micro_batches();
  for (int k = 0; k < num_stages; ++k) {
    const StageShape bare = Bare(k);
    OfStage& of = of_stage_.emplace_back();
    of.boundary_bytes =
        k > 0 ? TravelBytes(bare) : InputBytes(job.model, job.layers.front(), job.largest);
    of.fixed_bytes = LinkBytes(bare, of.boundary_bytes, OutputBoundaryBytes(bare));
    of.buffers = ConversionBuffers(bare);
    of.levels = std::move(levels[k]);
  }
  const int64_t travel_bytes = TravelBytes(Bare(0));
  for (const WorkerClass& each : *classes) {
    const bool cuda = each.compute.device == DeviceKind::kCuda;
    StageShape bare = Bare(0);
    bare.device = each.compute.device;
    of_class_.push_back({layers_->SizesOn(each.compute), ConversionBufferBytes(bare),
                         cuda ? kCudaProductBytes : PanelBytes(job.precision, each.compute.threads),
                         cuda ? CudaTransferBytes(Bare(num_stages - 1)) : 0, cuda,
                         LinkSeconds(each, travel_bytes),
                         SecondsOfKinds(layers->kinds(), each.measured)});
  }
}

void StageTable::AddComputeSeconds(const Cell& cell, StageCosts* costs) const {
  const std::vector<MeasuredCost>& measured = of_class_[cell.worker_class].measured;
  if (measured.empty()) {
    const WorkerClass& of = (*classes_)[cell.worker_class];
    const double forward = layers_->ForwardFlops(cell.first, cell.end);
    const double recompute = layers_->RecomputeFlops(cell.first, cell.end);
    const double backward = layers_->BackwardFlops(cell.first, cell.end);
    costs->forward_s +=
        of.sim ? SimForwardSeconds(*of.sim, forward) : forward / of.flops_per_second;
    costs->recompute_s +=
        of.sim ? SimRecomputeSeconds(*of.sim, recompute) : recompute / of.flops_per_second;
    costs->backward_s +=
        of.sim ? SimBackwardSeconds(*of.sim, backward) : backward / of.flops_per_second;
    return;
  }
  for (size_t i = 0; i < measured.size(); ++i) {
    const std::vector<int>& before = layers_->kinds()[i].before;
    const int count = before[cell.end] - before[cell.first];
    costs->forward_s += count * measured[i].forward_s;
    costs->recompute_s += count * measured[i].recompute_s;
    costs->backward_s += count * measured[i].backward_s;
  }
}

StageCosts StageTable::Costs(int stage, const Cell& cell) const {
  StageCosts costs;
  AddComputeSeconds(cell, &costs);
  const double link_s = of_class_[cell.worker_class].link_s;
  if (stage < num_stages_ - 1) costs.activation_s = link_s;
  if (stage > 0) costs.gradient_s = link_s;
  return costs;
}

double StageTable::Seconds(int stage, int worker_class, int first, int end) const {
  if (first == end) return 0;  // the partition's search passes over empty stages
  const StageCosts costs = Costs(stage, {first, end, worker_class});
  if (!layers_->job().training) return costs.forward_s + costs.activation_s;
  return costs.forward_s + recomputed_share_ * costs.recompute_s + costs.backward_s +
         costs.activation_s + costs.gradient_s;
}

int64_t StageTable::StashBytes(const OfStage& of, const OfClass& on, int first, int end) const {
  if (!layers_->job().training) return of.boundary_bytes;
  const int64_t working_set = layers_->WorkingSetBytes(on.sizes, first, end);
  int64_t peak = 0;
  for (const StashLevel& level : of.levels) {
    peak = std::max(peak, level.boundaries * of.boundary_bytes + level.working_sets * working_set);
  }
  return peak;
}

StageShape StageTable::Bare(int stage) const {
  const JobShape& job = layers_->job();
  StageShape shape;
  shape.model = job.model;
  shape.stage = stage;
  shape.num_stages = num_stages_;
  shape.largest = job.largest;
  shape.credits = job.credits;
  shape.training = job.training;
  shape.bf16_boundaries = job.bf16_boundaries;
  shape.precision = job.precision;
  shape.micro_batches = job.micro_batches();
  return shape;
}

int64_t StageTable::Bytes(int stage, int worker_class, int first, int end) const {
  const OfStage& of_stage = of_stage_[stage];
  const OfClass& of_class = of_class_[worker_class];
  const int64_t norm_bytes = of_class.cuda && layers_->job().training
                                 ? CudaNormBytes(layers_->OwnParameters(first, end))
                                 : 0;
  return layers_->StateBytes(of_class.sizes, first, end) +
         StashBytes(of_stage, of_class, first, end) +
         layers_->WorkspaceBytes(of_class.sizes, first, end) + of_stage.fixed_bytes +
         of_stage.buffers * of_class.buffer_bytes + of_class.fixed_bytes + norm_bytes +
         (stage == num_stages_ - 1 ? of_class.last_bytes : 0);
}

}  // namespace headrace
