#include "worker/pipeline/link_pools.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "worker/pipeline/stash.h"

namespace headrace {
namespace {

int64_t TieBytes(const StageJob& job) {
  return AlignUp(4 * job.shape.model.vocabulary * job.shape.model.width);
}

bool HoldsTieEnd(const StageJob& job) {
  return !job.generates && job.tie_crosses_stages() && (job.first() || job.last());
}

absl::Status Unexpected(const StageJob& job, const Tag& tag, const std::string& why) {
  return absl::InvalidArgumentError(
      absl::StrCat("stage ", job.stage(), " expects no ", ToText(tag), ": ", why));
}

// The stage a tensor of this kind comes from; −1 if none may arrive here.
int SenderOf(const StageJob& job, v1::MessageKind kind) {
  const int last = job.num_stages() - 1;
  const bool training = !job.generates;
  switch (kind) {
    case v1::MESSAGE_KIND_ACTIVATION:
    case v1::MESSAGE_KIND_DECISION:
      return training ? job.stage() - 1 : -1;
    case v1::MESSAGE_KIND_EVAL_ACTIVATION:
      return job.stage() - 1;
    case v1::MESSAGE_KIND_GRADIENT:
    case v1::MESSAGE_KIND_NORM_PARTIAL:
      return training && !job.last() ? job.stage() + 1 : -1;
    case v1::MESSAGE_KIND_TIED_GRADIENT:
      return HoldsTieEnd(job) && job.first() ? last : -1;
    case v1::MESSAGE_KIND_TIED_WEIGHTS:
      return HoldsTieEnd(job) && job.last() ? 0 : -1;
    case v1::MESSAGE_KIND_TOKEN:
      return job.generates && job.first() && last > 0 ? last : -1;
    default:
      return -1;
  }
}

// The input lies in shared memory, if there is any.
bool IsShared(const StageJob& job, CreditClass input) {
  const int from = InputFrom(job, input);
  return from >= 0 && job.MayShareMemoryWith(from);
}

// Micro-batches a tag of this kind may number, from 0.
int64_t NumMicroBatches(const StageJob& job, v1::MessageKind kind) {
  const int64_t m = static_cast<int64_t>(job.micro_batches.size());
  switch (kind) {
    case v1::MESSAGE_KIND_ACTIVATION:
    case v1::MESSAGE_KIND_GRADIENT:
      return m;
    case v1::MESSAGE_KIND_EVAL_ACTIVATION:
      return job.generates ? 1 : m * job.training.eval_batches();
    default:
      return 1;
  }
}

bool StepIsInRange(const StageJob& job, int64_t step) {
  if (job.generates) return step >= 0 && step < job.generate.max_tokens();
  return step > job.start_step && step <= job.training.steps();
}

// Of LinkPools or StagedPools.
template <typename Pools>
Pool* InputPool(const Pools& pools, v1::MessageKind kind) {
  switch (kind) {
    case v1::MESSAGE_KIND_ACTIVATION:
    case v1::MESSAGE_KIND_EVAL_ACTIVATION:
      return pools.activations_in;
    case v1::MESSAGE_KIND_GRADIENT:
      return pools.gradients_in;
    case v1::MESSAGE_KIND_TIED_GRADIENT:
    case v1::MESSAGE_KIND_TIED_WEIGHTS:
      return pools.tie_in;
    default:
      return nullptr;
  }
}

ElementType TypeOf(const StageJob& job, v1::MessageKind kind) {
  switch (kind) {
    case v1::MESSAGE_KIND_NORM_PARTIAL:
    case v1::MESSAGE_KIND_DECISION:
      return ElementType::kFloat64;
    case v1::MESSAGE_KIND_TOKEN:
      return ElementType::kInt32;
    default:
      return IsPipelined(kind) ? job.boundary_type() : ElementType::kFloat32;
  }
}

// One of the pools beside a device's.
struct StagedPool {
  const char* name;
  Pool* StagedPools::*pool;
  int64_t slot_bytes;
  int slots;
  CreditClass input;  // kNone: an output
};

// Credits bound what is under way on an edge; one more slot is being copied.
std::vector<StagedPool> ListStaged(const StageJob& job) {
  const int slots = static_cast<int>(job.shape.credits) + 1;
  const int64_t in = BoundaryBytes(job.shape), out = OutputBoundaryBytes(job.shape);
  std::vector<StagedPool> pools;
  if (!job.first()) {
    pools.push_back({"staged activations in", &StagedPools::activations_in, in, slots,
                     CreditClass::kActivation});
  }
  if (!job.last()) {
    pools.push_back(
        {"staged activations out", &StagedPools::activations_out, out, slots, CreditClass::kNone});
  }
  if (job.generates) return pools;
  if (!job.last()) {
    pools.push_back(
        {"staged gradients in", &StagedPools::gradients_in, out, slots, CreditClass::kGradient});
  }
  if (!job.first()) {
    pools.push_back(
        {"staged gradients out", &StagedPools::gradients_out, in, slots, CreditClass::kNone});
  }
  if (HoldsTieEnd(job)) {
    pools.push_back({"staged tie in", &StagedPools::tie_in, TieBytes(job), 1, CreditClass::kTie});
    pools.push_back(
        {"staged tie out", &StagedPools::tie_out, TieBytes(job), 1, CreditClass::kNone});
  }
  return pools;
}

}  // namespace

absl::StatusOr<LinkPools> LinkPools::Create(const StageJob& job, Pool* boundary_pool, Arena* arena,
                                            SharedRegion* shared, Arena* staging) {
  const int credits = static_cast<int>(job.shape.credits);
  LinkPools pools;
  const auto carve = [&](const char* name, int64_t bytes, int slots, Pool** pool,
                         SharedRegion* region = nullptr) -> absl::Status {
    HEADRACE_ASSIGN_OR_RETURN(*pool, arena->CarvePool(name, bytes, slots, region));
    return absl::OkStatus();
  };
  if (staging != nullptr) {
    for (const StagedPool& staged : ListStaged(job)) {
      HEADRACE_ASSIGN_OR_RETURN(pools.staged.*staged.pool,
                                staging->CarvePool(staged.name, staged.slot_bytes, staged.slots,
                                                   IsShared(job, staged.input) ? shared : nullptr));
    }
  }
  const auto place = [&](CreditClass input) {
    return staging == nullptr && IsShared(job, input) ? shared : nullptr;
  };
  const int64_t in = BoundaryBytes(job.shape), out = OutputBoundaryBytes(job.shape);
  pools.activations_in = job.first() ? nullptr : boundary_pool;
  if (!job.last()) {
    HEADRACE_RETURN_IF_ERROR(carve("activations out", out, credits + 1, &pools.activations_out));
  }
  if (job.generates) return pools;
  if (!job.last()) {
    HEADRACE_RETURN_IF_ERROR(carve("gradients in", out, credits + 1, &pools.gradients_in,
                                   place(CreditClass::kGradient)));
  }
  if (!job.first()) {
    HEADRACE_RETURN_IF_ERROR(carve("gradients out", in, credits + 1, &pools.gradients_out));
  }
  if (HoldsTieEnd(job)) {
    HEADRACE_RETURN_IF_ERROR(
        carve("tie in", TieBytes(job), 1, &pools.tie_in, place(CreditClass::kTie)));
  }
  return pools;
}

int64_t LinkPools::CarvedBytes(const StageJob& job) {
  const int64_t slots = job.shape.credits + 1;
  const int64_t in = BoundaryBytes(job.shape), out = OutputBoundaryBytes(job.shape);
  int64_t bytes = 0;
  if (!job.first() && !job.generates) bytes += slots * in;
  if (!job.last()) bytes += slots * out * (job.generates ? 1 : 2);
  if (HoldsTieEnd(job)) bytes += TieBytes(job);
  return bytes;
}

int64_t LinkPools::StagedBytes(const StageJob& job, bool shares) {
  if (!job.staged()) return 0;
  int64_t bytes = 0;
  for (const StagedPool& staged : ListStaged(job)) {
    if (!shares || !IsShared(job, staged.input)) bytes += staged.slots * staged.slot_bytes;
  }
  return bytes;
}

int InputFrom(const StageJob& job, CreditClass credit_class) {
  const int last = job.num_stages() - 1;
  switch (credit_class) {
    case CreditClass::kActivation:
      return job.stage() - 1;
    case CreditClass::kGradient:
      return job.generates || job.last() ? -1 : job.stage() + 1;
    case CreditClass::kTie:
      return HoldsTieEnd(job) ? last - job.stage() : -1;
    case CreditClass::kNone:
      break;
  }
  return -1;
}

bool HasSharedInputs(const StageJob& job) {
  // Whoever sends no tensors but tokens or numbers counts too: its stream is a link as well.
  const int neighbours[] = {job.stage() - 1, job.stage() + 1, 0, job.num_stages() - 1};
  return std::any_of(std::begin(neighbours), std::end(neighbours), [&job](int k) {
    return k >= 0 && k < job.num_stages() && k != job.stage() && job.MayShareMemoryWith(k);
  });
}

int64_t SharedInputBytes(const StageJob& job) {
  int64_t bytes = 0;
  const auto add = [&](CreditClass input, int64_t pool_bytes) {
    if (IsShared(job, input)) bytes += SharedRegion::PieceBytes(pool_bytes);
  };
  // A device's own boundaries are not among them, but what arrives for them.
  add(CreditClass::kActivation, job.staged() ? (job.shape.credits + 1) * BoundaryBytes(job.shape)
                                             : Stash::BoundaryPoolBytes(job.shape, job.actions));
  add(CreditClass::kGradient, (job.shape.credits + 1) * OutputBoundaryBytes(job.shape));
  add(CreditClass::kTie, TieBytes(job));
  return bytes;
}

SharedInputs DescribeSharedInputs(const StageJob& job, const LinkPools& pools,
                                  const SharedRegion* region, std::string why_none) {
  SharedInputs shared{region, std::move(why_none), {}};
  const bool staged = job.staged();
  for (const auto& [credit_class, pool] :
       {std::pair{CreditClass::kActivation, pools.activations_in},
        std::pair{CreditClass::kGradient, pools.gradients_in},
        std::pair{CreditClass::kTie, pools.tie_in}}) {
    if (!staged || pool == nullptr) continue;
    shared.device_inputs.push_back({InputFrom(job, credit_class), credit_class, pool});
  }
  if (region == nullptr) return shared;
  const StagedPools& host = pools.staged;
  for (const auto& [credit_class, pool] :
       {std::pair{CreditClass::kActivation, staged ? host.activations_in : pools.activations_in},
        std::pair{CreditClass::kGradient, staged ? host.gradients_in : pools.gradients_in},
        std::pair{CreditClass::kTie, staged ? host.tie_in : pools.tie_in}}) {
    if (pool == nullptr || !IsShared(job, credit_class)) continue;
    shared.inputs.push_back({InputFrom(job, credit_class), credit_class, pool});
  }
  return shared;
}

std::vector<int64_t> TieShape(const StageJob& job) {
  return {job.shape.model.vocabulary, job.shape.model.width};
}

int64_t GenerateLength(const StageJob& job, int64_t index) {
  return std::min<int64_t>(job.generate.prompt_size() + index, job.shape.largest.length);
}

std::vector<int64_t> ShapeOf(const StageJob& job, const Tag& tag) {
  switch (tag.kind) {
    case v1::MESSAGE_KIND_TIED_GRADIENT:
    case v1::MESSAGE_KIND_TIED_WEIGHTS:
      return TieShape(job);
    case v1::MESSAGE_KIND_TOKEN:
      return {1};
    case v1::MESSAGE_KIND_NORM_PARTIAL:
      return {2};
    case v1::MESSAGE_KIND_DECISION:
      return {3};
    default:
      break;
  }
  const int64_t tokens =
      job.generates ? GenerateLength(job, tag.step)
                    : job.micro_batches[tag.micro_batch % job.micro_batches.size()].tokens();
  return {tokens, job.shape.model.width};
}

int64_t BytesOf(const StageJob& job, const Tag& tag) {
  return Tensor{nullptr, TypeOf(job, tag.kind), ShapeOf(job, tag)}.bytes();
}

absl::StatusOr<Expectation> Expect(const StageJob& job, const LinkPools& pools, const Tag& tag) {
  const int sender = SenderOf(job, tag.kind);
  if (sender < 0) return Unexpected(job, tag, "none of that kind comes here");
  if (tag.from_stage != sender) {
    return Unexpected(job, tag, absl::StrCat("it comes from stage ", sender));
  }
  if (tag.chunk != job.stage()) {
    return Unexpected(job, tag, absl::StrCat("it is for chunk ", tag.chunk));
  }
  if (!StepIsInRange(job, tag.step)) return Unexpected(job, tag, "there is no such step");
  const int64_t count = NumMicroBatches(job, tag.kind);
  if (tag.micro_batch < 0 || tag.micro_batch >= count) {
    return Unexpected(job, tag, absl::StrCat("micro-batches are 0 to ", count - 1));
  }

  Expectation expected;
  expected.pool = InputPool(pools, tag.kind);
  expected.staging = InputPool(pools.staged, tag.kind);
  expected.type = TypeOf(job, tag.kind);
  expected.shape = ShapeOf(job, tag);
  if (expected.pool != nullptr && job.hollow_from(tag.from_stage)) {
    expected.shape = {kHollowElements};
  }
  return expected;
}

}  // namespace headrace
