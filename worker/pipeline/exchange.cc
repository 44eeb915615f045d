#include "worker/pipeline/exchange.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/status.h"
#include "common/steady_clock.h"

namespace headrace {
namespace {

// A send that did not wait for a credit takes less than this.
constexpr int64_t kNoWaitNs = 10'000;

std::string At(const Position& position) {
  if (position.micro_batch < 0) return absl::StrCat("step ", position.step);
  return absl::StrCat("step ", position.step, ", micro-batch ", position.micro_batch);
}

template <typename T>
Outgoing Inline(ElementType type, const T* values, size_t count) {
  Outgoing outgoing;
  outgoing.inline_bytes.resize(count * sizeof(T));
  std::memcpy(outgoing.inline_bytes.data(), values, count * sizeof(T));
  outgoing.tensor = {outgoing.inline_bytes.data(), type, {static_cast<int64_t>(count)}};
  return outgoing;
}

// Of LinkPools or StagedPools.
template <typename Pools>
Pool* OutputPool(const Pools& pools, v1::MessageKind kind) {
  return kind == v1::MESSAGE_KIND_GRADIENT ? pools.gradients_out : pools.activations_out;
}

}  // namespace

const char* NounOf(v1::MessageKind kind) {
  switch (kind) {
    case v1::MESSAGE_KIND_ACTIVATION:
      return "activation";
    case v1::MESSAGE_KIND_GRADIENT:
      return "gradient";
    case v1::MESSAGE_KIND_EVAL_ACTIVATION:
      return "evaluation activation";
    case v1::MESSAGE_KIND_TIED_GRADIENT:
      return "tied weight's gradient";
    case v1::MESSAGE_KIND_TIED_WEIGHTS:
      return "tied weight";
    case v1::MESSAGE_KIND_NORM_PARTIAL:
      return "gradient norm";
    case v1::MESSAGE_KIND_DECISION:
      return "decision";
    case v1::MESSAGE_KIND_TOKEN:
      return "token";
    default:
      return "message";
  }
}

Exchange::Exchange(const StageJob* job, LinkPools pools, Inbox* inbox, Outbox* outbox,
                   FlightRecorder* recorder, SpanRecorder* spans, ComputeDevice* device)
    : job_(*job),
      pools_(pools),
      inbox_(inbox),
      outbox_(outbox),
      recorder_(recorder),
      spans_(spans),
      device_(device) {}

Tag Exchange::MakeTag(v1::MessageKind kind, int from_stage, int chunk) const {
  Tag tag;
  tag.kind = kind;
  tag.from_stage = from_stage;
  tag.step = position_.step;
  tag.chunk = chunk;
  tag.micro_batch = position_.micro_batch < 0 ? 0 : position_.micro_batch;
  return tag;
}

std::string Exchange::PeerName(int stage) const {
  return absl::StrCat("stage ", stage, " (worker ", job_.peers[stage].worker(), ")");
}

void Exchange::Record(const std::string& what) {
  recorder_->Record(absl::StrCat(At(position_), ": ", what));
}

void Exchange::AddSpan(v1::SpanKind kind, int64_t begin_ns, int64_t end_ns) {
  Span span;
  span.kind = kind;
  span.step = position_.step;
  span.micro_batch = position_.micro_batch;
  span.begin_ns = begin_ns;
  span.end_ns = end_ns;
  spans_->Add(span);
}

Span Exchange::TensorSpan(v1::SpanKind span, v1::MessageKind kind, int peer,
                          int64_t begin_ns) const {
  Span of;
  of.kind = span;
  of.step = position_.step;
  of.micro_batch = position_.micro_batch;
  of.message = kind;
  of.peer = peer;
  of.begin_ns = begin_ns;
  return of;
}

void Exchange::AddWait(v1::SpanKind kind, v1::MessageKind message, int peer, int64_t begin_ns) {
  Span span = TensorSpan(kind, message, peer, begin_ns);
  span.end_ns = SteadyNanos();
  spans_->Add(span);
}

void Exchange::AddReceive(const Received& received, int from_stage) {
  Span span = TensorSpan(v1::SPAN_KIND_RECEIVE, received.tag.kind, from_stage, received.began_ns);
  span.bytes = received.tensor.bytes();
  span.end_ns = received.arrived_ns;
  spans_->Add(span);
}

absl::Status Exchange::Failure(absl::StatusCode code, const std::string& what) const {
  return absl::Status(code, absl::StrCat("worker ", job_.worker(), ", stage ", job_.stage(), ", ",
                                         At(position_), ": ", what));
}

absl::Status Exchange::Blame(int stage, const absl::Status& cause, const std::string& doing,
                             const std::string& waited_for, absl::Duration waited) {
  if (absl::IsCancelled(cause)) return cause;
  blamed_stage_ = stage;
  const std::string what =
      absl::IsDeadlineExceeded(cause)
          ? absl::StrFormat("waited %.1f s for %s", absl::ToDoubleSeconds(waited), waited_for)
          : absl::StrCat("lost ", PeerName(stage), " while ", doing, ": ", cause.message());
  Record(what);
  return Failure(cause.code(), what);
}

absl::StatusOr<Received> Exchange::Take(v1::MessageKind kind, int from_stage) {
  const std::string what = absl::StrCat("the ", NounOf(kind), " from ", PeerName(from_stage));
  Record(absl::StrCat("waiting for ", what));
  const absl::Time start = absl::Now();
  const int64_t start_ns = SteadyNanos();
  absl::StatusOr<Received> received =
      inbox_->Take(MakeTag(kind, from_stage, job_.stage()), start + job_.wait_timeout);
  const absl::Duration waited = absl::Now() - start;
  waited_to_receive_ += waited;
  AddWait(v1::SPAN_KIND_WAIT_RECEIVE, kind, from_stage, start_ns);
  if (!received.ok()) {
    return Blame(from_stage, received.status(), absl::StrCat("waiting for its ", NounOf(kind)),
                 what, waited);
  }
  if (received->slot.valid() && job_.hollow_from(from_stage)) {
    received->tensor.shape = ShapeOf(job_, received->tag);
  }
  AddReceive(*received, from_stage);
  HEADRACE_RETURN_IF_ERROR(Land(&*received));
  received_bytes_ += received->tensor.bytes();
  Record(absl::StrCat("took ", what));
  return received;
}

absl::Status Exchange::Land(Received* received) {
  if (!received->staged.valid()) return absl::OkStatus();
  const absl::Status landed = device_->ToDevice(received->slot.data(), received->tensor.data,
                                                received->tensor.bytes(), NounOf(received->tag.kind));
  if (!landed.ok()) return Failure(landed.code(), std::string(landed.message()));
  received->tensor.data = received->slot.data();
  received->staged = Slot();
  return absl::OkStatus();
}

absl::Status Exchange::Stage(Outgoing* outgoing) {
  if (!job_.staged() || !outgoing->inline_bytes.empty()) return absl::OkStatus();
  const v1::MessageKind kind = outgoing->tag.kind;
  // A tie leaves from where it lies.
  Pool* const pool =
      outgoing->slot.valid() ? OutputPool(pools_.staged, kind) : pools_.staged.tie_out;
  HEADRACE_ASSIGN_OR_RETURN(Slot staged, AwaitSlot(pool, kind));
  if (LinkDevice* const links = device_->links(); links != nullptr) {
    // The link copies it, once it is made, or does without.
    DeviceFailure failure;
    outgoing->mark = links->Mark(&failure);
    if (outgoing->mark < 0) return Failure(absl::StatusCode::kInternal, failure.text);
    outgoing->staged = std::move(staged);
    return absl::OkStatus();
  }
  const absl::Status read = device_->ToHost(staged.data(), outgoing->tensor.data,
                                            outgoing->tensor.bytes(), NounOf(kind));
  if (!read.ok()) return Failure(read.code(), std::string(read.message()));
  outgoing->tensor.data = staged.data();
  outgoing->slot = std::move(staged);
  return absl::OkStatus();
}

absl::Status Exchange::CheckDevice() const {
  if (device_ == nullptr) return absl::OkStatus();
  const absl::Status checked = device_->Check();
  if (checked.ok()) return checked;
  return Failure(checked.code(), std::string(checked.message()));
}

absl::StatusOr<std::vector<double>> Exchange::TakeNumbers(v1::MessageKind kind, int from_stage) {
  HEADRACE_ASSIGN_OR_RETURN(const Received received, Take(kind, from_stage));
  std::vector<double> numbers(received.tensor.elements());
  std::memcpy(numbers.data(), received.inline_bytes.data(), numbers.size() * sizeof(double));
  return numbers;
}

absl::StatusOr<int32_t> Exchange::TakeToken(int from_stage) {
  HEADRACE_ASSIGN_OR_RETURN(const Received received, Take(v1::MESSAGE_KIND_TOKEN, from_stage));
  int32_t token = 0;
  std::memcpy(&token, received.inline_bytes.data(), sizeof(token));
  return token;
}

absl::StatusOr<Slot> Exchange::AwaitSlot(Pool* pool, v1::MessageKind kind) {
  // A slot is free once the transport has let go of its last byte, which may be a moment after the
  // receiver's credit came back.
  constexpr absl::Duration kRetryEvery = absl::Microseconds(50);
  const absl::Time start = absl::Now();
  const int64_t start_ns = SteadyNanos();
  bool waited = false;
  absl::StatusOr<Slot> slot = pool->Acquire(MemoryKind::kLink);
  while (absl::IsResourceExhausted(slot.status()) && absl::Now() - start < job_.wait_timeout) {
    waited = true;
    absl::SleepFor(kRetryEvery);
    slot = pool->Acquire(MemoryKind::kLink);
  }
  waited_to_send_ += absl::Now() - start;
  if (waited) AddWait(v1::SPAN_KIND_WAIT_SEND, kind, /*peer=*/-1, start_ns);
  if (!slot.ok()) {
    return Failure(slot.status().code(), absl::StrCat("no memory to send the ", NounOf(kind), ": ",
                                                      slot.status().message()));
  }
  return slot;
}

absl::StatusOr<Outgoing> Exchange::Prepare(v1::MessageKind kind, std::vector<int64_t> shape) {
  HEADRACE_ASSIGN_OR_RETURN(Slot slot, AwaitSlot(OutputPool(pools_, kind), kind));
  Outgoing outgoing;
  outgoing.tag.kind = kind;
  const ElementType type = IsPipelined(kind) ? job_.boundary_type() : ElementType::kFloat32;
  outgoing.tensor = {slot.data(), type, std::move(shape)};
  outgoing.slot = std::move(slot);
  return outgoing;
}

absl::Status Exchange::Send(int to_stage, Outgoing outgoing) {
  const v1::MessageKind kind = outgoing.tag.kind;
  const int64_t bytes = outgoing.tensor.bytes();
  HEADRACE_RETURN_IF_ERROR(Stage(&outgoing));
  outgoing.tag = MakeTag(kind, job_.stage(), to_stage);
  if (outgoing.slot.valid() && job_.hollow_from(job_.stage())) {
    outgoing.tensor.shape = {kHollowElements};
  }
  const std::string what = absl::StrCat("the ", NounOf(kind), " to ", PeerName(to_stage));
  Record(absl::StrCat("sending ", what));
  const absl::Time start = absl::Now();
  const int64_t start_ns = SteadyNanos();
  Span departs = TensorSpan(v1::SPAN_KIND_SEND, kind, to_stage, start_ns);
  departs.bytes = bytes;
  outgoing.departure = Departure(spans_, departs);
  const absl::Status sent = outbox_->Send(to_stage, std::move(outgoing), start + job_.wait_timeout);
  const absl::Duration waited = absl::Now() - start;
  waited_to_send_ += waited;
  if (SteadyNanos() - start_ns > kNoWaitNs) {
    AddWait(v1::SPAN_KIND_WAIT_SEND, kind, to_stage, start_ns);
  }
  if (!sent.ok()) {
    return Blame(to_stage, sent, absl::StrCat("sending it the ", NounOf(kind)),
                 absl::StrCat("a credit to send ", what), waited);
  }
  sent_bytes_ += bytes;
  return absl::OkStatus();
}

absl::Status Exchange::SendNumbers(v1::MessageKind kind, int to_stage,
                                   std::initializer_list<double> numbers) {
  Outgoing outgoing = Inline(ElementType::kFloat64, numbers.begin(), numbers.size());
  outgoing.tag.kind = kind;
  return Send(to_stage, std::move(outgoing));
}

absl::Status Exchange::SendToken(int to_stage, int32_t token) {
  Outgoing outgoing = Inline(ElementType::kInt32, &token, 1);
  outgoing.tag.kind = v1::MESSAGE_KIND_TOKEN;
  return Send(to_stage, std::move(outgoing));
}

}  // namespace headrace
