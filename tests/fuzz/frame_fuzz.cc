// A stage's receiving end without the network: messages as they came, then DecodeFrame, the
// assembler with credits and shared slots as a stream gives them out, the inbox, and an executor
// that takes. One byte says what happens next, its arguments follow.
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_targets.h"
#include "worker/backend/arena.h"
#include "worker/pipeline/inbox.h"
#include "worker/transport/crc32c.h"
#include "worker/transport/frame.h"
#include "worker/transport/tensor_assembler.h"

namespace headrace {
namespace {

constexpr int kSlots = 4;
constexpr int kCredits = 2;
constexpr int kFromStage = 0;
const std::vector<int64_t> kShape = {4, 8};
constexpr int64_t kTensorBytes = 4 * 8 * 4;
constexpr unsigned char kMark = 0xa5;

const LinkContext kContext = {
    .job_id = "j1", .generation = 3, .stage = 1, .credits = kCredits, .host = "h"};

grpc::ByteBuffer Message(const std::string& bytes, size_t slice_bytes) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += slice_bytes) {
    slices.emplace_back(bytes.substr(at, slice_bytes));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

class ReceivingStage {
 public:
  ReceivingStage()
      : arena_(*Arena::Create(8 * kTensorBytes * kSlots + (1 << 14))),
        pool_(*arena_->CarvePool("frames", kTensorBytes, kSlots)),
        shared_(*arena_->CarvePool("shared", kTensorBytes, kSlots)),
        witness_(*arena_->Carve(MemoryKind::kWorkspace, "witness", ElementType::kFloat32, {1024})),
        inbox_([this](const Tag& tag) { return Expect(tag); }),
        assembler_(
            std::in_place, kContext, kFromStage, &inbox_,
            [this](const Tag& tag) { return Admit(tag); },
            [this](const Tag& tag, int64_t offset) { return Claim(tag, offset); }, nullptr) {
    memset(witness_.data, kMark, static_cast<size_t>(witness_.bytes()));
    inbox_.OnTaken([this](const Tag& tag) {
      if (IsPipelined(tag.kind)) --held_[CreditClassOf(tag.kind)];
    });
  }

  ~ReceivingStage() {
    inbox_.Close();
    granted_.clear();
    assembler_.reset();
    FUZZ_CHECK(pool_->free_slots() == kSlots && shared_->free_slots() == kSlots,
               "a slot was not given back");
    const auto* bytes = static_cast<const unsigned char*>(witness_.data);
    for (int64_t i = 0; i < witness_.bytes(); ++i) {
      FUZZ_CHECK(bytes[i] == kMark, "somebody wrote past a slot");
    }
  }

  // False: the stream has ended, as it does by an error.
  bool Accept(grpc::ByteBuffer message) {
    const absl::StatusOr<Frame> frame = DecodeFrame(std::move(message));
    if (!frame.ok()) {
      FUZZ_CHECK(absl::IsInvalidArgument(frame.status()), "DecodeFrame's error");
      return Lose(frame.status());
    }
    FUZZ_CHECK(frame->payload.size() <= kChunkBytes, "a frame longer than a chunk");
    const absl::Status accepted = assembler_->Accept(*frame);
    if (!accepted.ok()) return Lose(accepted);
    if (assembler_->ended()) inbox_.End(kFromStage);
    return true;
  }

  void Take(const Tag& tag) {
    const absl::StatusOr<Received> taken = inbox_.Take(tag, absl::InfinitePast());
    if (!taken.ok()) return;
    FUZZ_CHECK(taken->tag == tag, "another tensor was taken");
    FUZZ_CHECK(taken->tensor.bytes() == 24 || taken->tensor.bytes() == kTensorBytes,
               "a tensor of another size was taken");
  }

  void GrantSlot() {
    if (absl::StatusOr<Slot> slot = shared_->Acquire(MemoryKind::kLink); slot.ok()) {
      granted_.emplace(static_cast<int64_t>(granted_.size()) * kTensorBytes, *std::move(slot));
    }
  }

 private:
  absl::StatusOr<Expectation> Expect(const Tag& tag) {
    if (tag.kind == v1::MESSAGE_KIND_DECISION) {
      return Expectation{.type = ElementType::kFloat64, .shape = {3}};
    }
    const bool shared = tag.kind == v1::MESSAGE_KIND_TIED_WEIGHTS;
    if ((tag.kind != v1::MESSAGE_KIND_ACTIVATION && !shared) || tag.micro_batch >= 8) {
      return absl::InvalidArgumentError("not expected");
    }
    return Expectation{.shape = kShape, .pool = shared ? shared_ : pool_};
  }

  absl::Status Admit(const Tag& tag) {
    if (!IsPipelined(tag.kind)) return absl::OkStatus();
    if (held_[CreditClassOf(tag.kind)] >= kCredits) {
      return absl::ResourceExhaustedError("sent without a credit");
    }
    ++held_[CreditClassOf(tag.kind)];
    return absl::OkStatus();
  }

  absl::StatusOr<Slot> Claim(const Tag&, int64_t offset) {
    auto granted = granted_.extract(offset);
    if (!granted) return absl::InvalidArgumentError("no slot was granted there");
    return std::move(granted.mapped());
  }

  bool Lose(const absl::Status& cause) {
    inbox_.Fail(kFromStage, cause);
    return false;
  }

  const std::unique_ptr<Arena> arena_;
  Pool* const pool_;
  Pool* const shared_;
  const Tensor witness_;  // lies after the pools
  std::map<CreditClass, int> held_;
  std::map<int64_t, Slot> granted_;
  Inbox inbox_;
  std::optional<TensorAssembler> assembler_;
};

// A header with the fuzzer's fields, but of the right stream, and with its payload's real length
// and sum: what comes after those checks is reached, too.
grpc::ByteBuffer Mended(const std::string& header_bytes, const std::string& payload) {
  v1::TensorHeader header;
  header.ParsePartialFromString(header_bytes);
  header.set_job_id(kContext.job_id);
  header.set_generation(kContext.generation);
  header.set_from_stage(kFromStage);
  if (header.has_slot() || header.by_nccl()) return EncodeFrame(header);
  header.set_length(static_cast<int64_t>(payload.size()));
  header.set_crc32c(Crc32c(payload));
  return EncodeFrame(header, grpc::Slice(payload));
}

Tag ReadTag(FuzzInput* input) {
  constexpr v1::MessageKind kKinds[] = {v1::MESSAGE_KIND_ACTIVATION, v1::MESSAGE_KIND_DECISION,
                                        v1::MESSAGE_KIND_TIED_WEIGHTS, v1::MESSAGE_KIND_GRADIENT};
  Tag tag;
  tag.kind = kKinds[input->Choice(4)];
  tag.step = input->Byte();
  tag.micro_batch = input->Byte();
  return tag;
}

}  // namespace

void FuzzFrame(std::string_view bytes) {
  FuzzInput input(bytes);
  ReceivingStage stage;
  bool open = true;
  while (!input.done()) {
    switch (input.Choice(4)) {
      case 0: {
        const size_t slice_bytes = 1 + input.Byte();
        open = open && stage.Accept(Message(input.Piece(), slice_bytes));
        break;
      }
      case 1: {
        const std::string header = input.Piece();
        const std::string payload = input.Piece();
        open = open && stage.Accept(Mended(header, payload));
        break;
      }
      case 2:
        stage.Take(ReadTag(&input));
        break;
      default:
        stage.GrantSlot();
        break;
    }
  }
}

}  // namespace headrace
