// Bytes one stage needs, kind by kind, from its layers and its actions. The planner asks before it
// assigns; the worker carves its arena by the same numbers; a run's measured peaks equal them.
//
//   weights     WeightBytes: parameters, rotary tables, and the borrowed copy of a tied head, which
//               a stage that holds the embedding too reads in place (BorrowsFromOwnStage)
//   gradients   GradientBytes: parameters, and always the borrowed share of a tie
//   optimizer   OptimizerBytes: moments of owned parameters (adamw 2, sgd 0 or 1, rmsprop 1 or 2
//               with momentum)
//   stash       peak over the actions of: boundary inputs of micro-batches in flight (from the
//   start
//               of F to the end of B) and working sets (from the start of F, or of R where the
//               micro-batch is recomputed, to the end of B). A working set is all that the stage's
//               layers save, and the outputs of all but its last layer. Every micro-batch counts as
//               the largest one. GPipe §2.3: O(N + L/K · N/M)
//   workspace   StageWorkspaceBytes: two outputs and one layer's saved tensors (where some
//               forward keeps nothing), or two gradients (backward), with the largest layer's
//               temporaries: whichever is more; with boundaries of another type the layers' ends
//               of them too (ConversionBytes), and what the device's ops take (DeviceBytes)
//   link        tensors received but not taken, and sends in flight, as bounded by the credits c:
//   with
//               b the boundary going in and o the one going out, stage > 0: c·b (activations
//               in; a taken one becomes stash) + (c+1)·b (gradients out), stage < K−1: (c+1)·o
//               (activations out) + (c+1)·o (gradients in); tied head, K > 1: on the first and the
//               last stage one tensor of the tie, which arrives; it leaves from where it lies.
//               The same whatever the transport: in shared memory the receiver's slots are those
//               that senders fill. An
//               upper bound, reached or not as timing has it; every other kind is exact.
//
// Without training (generate) a stage has weights, one boundary input, a forward's workspace and
// the activations' links.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/action.h"
#include "plan/device_kind.h"
#include "plan/layer_spec.h"
#include "plan/precision.h"

namespace headrace {

struct StageShape {
  Model model;
  std::vector<LayerSpec> layers;  // of this stage only
  int64_t stage = 0;
  int64_t num_stages = 1;
  MicroBatchShape largest;        // micro-batch
  int64_t optimizer_moments = 2;  // fp32 values per parameter
  int64_t credits = 2;
  int threads = 1;
  bool training = true;  // false: generate
  // Some micro-batch is recomputed: its F keeps nothing, as none does in `generate`. Else
  // evaluation borrows a working set, of which none is in use then.
  bool recomputes = true;
  // What travels between stages, and so what is kept of it, is bfloat16 (pipeline.boundary_dtype).
  bool bf16_boundaries = false;
  Precision precision = Precision::kFp32;
  DeviceKind device = DeviceKind::kCpu;
  bool tf32 = false;  // of fp32 products on a CUDA device; takes no other memory
  int64_t micro_batches = 1;  // of a mini-batch

  Layout layout() const { return LayoutOn(device, precision, threads); }
};

// What is held at one point of a list.
struct StashLevel {
  int64_t boundaries = 0;
  int64_t working_sets = 0;

  friend bool operator==(const StashLevel&, const StashLevel&) = default;
};

struct StashPeak {
  int64_t boundaries = 0;    // most boundary inputs held at once
  int64_t working_sets = 0;  // most working sets held at once
  int64_t bytes = 0;         // peak of both together
};

struct StageBytes {
  int64_t weights = 0, gradients = 0, optimizer = 0, stash = 0, workspace = 0, link = 0;
  int64_t total() const { return weights + gradients + optimizer + stash + workspace + link; }
};

// fp32 values the optimizer keeps per parameter.
int64_t OptimizerMoments(const v1::OptimizerSpec& spec);

// `training` has passed ValidateJob.
Precision PrecisionOf(const v1::TrainingSpec& training);

int64_t BoundaryBytes(const StageShape& shape);        // of the stage's input, as it is kept
int64_t OutputBoundaryBytes(const StageShape& shape);  // of what it sends downstream; last stage: 0
// A micro-batch's [tokens, width] on its way between two stages.
int64_t TravelBytes(const StageShape& shape);
// Buffers between layers and boundaries of another type: the input and, in training, its gradient
// (stage > 0); the output, or in backward its gradient (stage < K−1). How many a stage there has,
// and all their bytes: 0 where both are of one type.
int64_t ConversionBuffers(const StageShape& shape);
int64_t ConversionBufferBytes(const StageShape& shape);  // of one
int64_t ConversionBytes(const StageShape& shape);
// What the device's ops take among themselves: panels of bf16 products on a CPU; on a CUDA device
// what plan/cuda_memory.h lists.
int64_t DeviceBytes(const StageShape& shape);
int64_t WorkingSetBytes(const StageShape& shape);  // of one micro-batch
// The levels of a list that no other level of it exceeds in both counts, boundaries ascending:
// whatever the sizes of a stage's tensors are, its peak is at one of them. One level for GPipe and
// 1F1B.
std::vector<StashLevel> StashLevels(const std::vector<Action>& actions);
StashPeak PeakStash(const StageShape& shape, const std::vector<Action>& actions);
// The link kind from what it depends on: the stage's input and output, its place, the credits
// (`layers` may be empty).
int64_t LinkBytes(const StageShape& shape, int64_t input_bytes, int64_t output_bytes);
StageBytes StageMemory(const StageShape& shape, const std::vector<Action>& actions);

}  // namespace headrace
