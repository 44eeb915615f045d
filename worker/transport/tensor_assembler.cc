#include "worker/transport/tensor_assembler.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status.h"
#include "worker/transport/crc32c.h"

namespace headrace {
namespace {

bool IsTensorKind(v1::MessageKind kind) {
  return kind >= v1::MESSAGE_KIND_ACTIVATION && kind <= v1::MESSAGE_KIND_TOKEN;
}

absl::Status Wrong(const Tag& tag, const char* what, int64_t came, int64_t expected) {
  return absl::InvalidArgumentError(
      absl::StrCat(ToText(tag), ": ", what, " ", came, ", expected ", expected));
}

// What a tensor's first frame says of it.
struct Announced {
  Tag tag;
  ElementType type;
  std::vector<int64_t> shape;
};

absl::StatusOr<Announced> ReadTensor(const v1::TensorHeader& header) {
  HEADRACE_ASSIGN_OR_RETURN(const Tag tag, TagOf(header));
  if (!IsTensorKind(tag.kind)) {
    return absl::InvalidArgumentError(
        absl::StrCat("frame of kind ", KindName(tag.kind), ", expected a tensor or END"));
  }
  const absl::StatusOr<ElementType> type = FromProto(header.element_type());
  if (!type.ok()) return Annotate(type.status(), ToText(tag));
  return Announced{tag, *type, {header.shape().begin(), header.shape().end()}};
}

absl::Status CheckSum(const v1::TensorHeader& header, const Tag& tag, uint32_t crc) {
  if (crc == header.crc32c()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrFormat("%s: bytes %d to %d have checksum %08x, expected %08x", ToText(tag),
                      header.offset(), header.offset() + header.length(), crc, header.crc32c()));
}

}  // namespace

TensorAssembler::TensorAssembler(const LinkContext& context, int from_stage, Inbox* inbox,
                                 Admit admit, Claim claim, Bring bring)
    : context_(context),
      from_stage_(from_stage),
      inbox_(inbox),
      admit_(std::move(admit)),
      claim_(std::move(claim)),
      bring_(std::move(bring)) {}

absl::Status TensorAssembler::Accept(const Frame& frame) {
  const v1::TensorHeader& header = frame.header;
  HEADRACE_RETURN_IF_ERROR(CheckSender(header));
  if (ended_) return absl::InvalidArgumentError("a frame after END, expected nothing");
  if (header.kind() == v1::MESSAGE_KIND_END) return AcceptEnd(header);
  if (header.has_slot()) return AcceptInPlace(header);
  if (header.by_nccl()) return AcceptByNccl(header);
  HEADRACE_RETURN_IF_ERROR(current_ ? CheckContinues(header) : Begin(header));
  HEADRACE_RETURN_IF_ERROR(CheckRange(header));
  const Tensor& tensor = current_->received.tensor;
  const uint32_t crc =
      frame.payload.CopyTo(static_cast<char*>(tensor.data) + current_->next_offset);
  HEADRACE_RETURN_IF_ERROR(CheckSum(header, current_->received.tag, crc));
  current_->next_offset += header.length();
  if (current_->next_offset < tensor.bytes()) return absl::OkStatus();
  Received whole = std::move(current_->received);
  current_.reset();
  return Deliver(std::move(whole));
}

absl::Status TensorAssembler::Deliver(Received received, bool by_nccl) {
  if (bring_ != nullptr && (by_nccl || received.staged.valid())) {
    const absl::Status brought = bring_(&received, by_nccl);
    if (!brought.ok()) return Annotate(brought, ToText(received.tag));
  }
  return inbox_->Put(std::move(received));
}

absl::Status TensorAssembler::CheckSender(const v1::TensorHeader& header) const {
  if (header.job_id() != context_.job_id || header.generation() != context_.generation) {
    return absl::FailedPreconditionError(
        absl::StrCat("frame for job ", header.job_id(), " generation ", header.generation(),
                     ", expected job ", context_.job_id, " generation ", context_.generation));
  }
  if (header.from_stage() != from_stage_) {
    return absl::InvalidArgumentError(absl::StrCat("frame from stage ", header.from_stage(),
                                                   " in a stream from stage ", from_stage_));
  }
  return absl::OkStatus();
}

absl::Status TensorAssembler::AcceptEnd(const v1::TensorHeader& header) {
  if (current_) {
    return absl::InvalidArgumentError(absl::StrCat("END at byte ", current_->next_offset, " of ",
                                                   current_->received.tensor.bytes(), " of ",
                                                   ToText(current_->received.tag)));
  }
  if (header.length() != 0) return absl::InvalidArgumentError("END with a payload, expected none");
  ended_ = true;
  return absl::OkStatus();
}

absl::Status TensorAssembler::Begin(const v1::TensorHeader& header) {
  HEADRACE_ASSIGN_OR_RETURN(const Announced announced, ReadTensor(header));
  HEADRACE_RETURN_IF_ERROR(admit_(announced.tag));
  HEADRACE_ASSIGN_OR_RETURN(Received received,
                            inbox_->Prepare(announced.tag, announced.type, announced.shape));
  const int64_t bytes = received.tensor.bytes();  // the plan's: the shape is the expected one
  if (header.total_bytes() != bytes) {
    return Wrong(announced.tag, "total_bytes", header.total_bytes(), bytes);
  }
  current_.emplace(Current{.received = std::move(received)});
  return absl::OkStatus();
}

absl::Status TensorAssembler::AcceptInPlace(const v1::TensorHeader& header) {
  HEADRACE_ASSIGN_OR_RETURN(const Announced announced, ReadTensor(header));
  if (current_) return CheckContinues(header);
  HEADRACE_ASSIGN_OR_RETURN(Slot slot, claim_(announced.tag, header.slot()));
  HEADRACE_ASSIGN_OR_RETURN(Received received, inbox_->Prepare(announced.tag, announced.type,
                                                               announced.shape, std::move(slot)));
  const int64_t bytes = received.tensor.bytes();
  if (header.total_bytes() != bytes) {
    return Wrong(announced.tag, "total_bytes", header.total_bytes(), bytes);
  }
  if (header.offset() != 0) return Wrong(announced.tag, "offset", header.offset(), 0);
  if (header.length() != bytes) return Wrong(announced.tag, "length", header.length(), bytes);
  const bool in_host_memory = bring_ == nullptr || received.staged.valid();
  if (in_host_memory) {
    HEADRACE_RETURN_IF_ERROR(CheckSum(
        header, announced.tag, ExtendCrc32c(0, received.tensor.data, static_cast<size_t>(bytes))));
  }
  return Deliver(std::move(received));
}

absl::Status TensorAssembler::AcceptByNccl(const v1::TensorHeader& header) {
  HEADRACE_RETURN_IF_ERROR(current_ ? CheckContinues(header) : Begin(header));
  Received received = std::move(current_->received);
  current_.reset();
  const int64_t bytes = received.tensor.bytes();
  if (header.length() != bytes) return Wrong(received.tag, "length", header.length(), bytes);
  if (bring_ == nullptr || !received.slot.valid()) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToText(received.tag), ": announced to come by NCCL, expected in a frame"));
  }
  return Deliver(std::move(received), /*by_nccl=*/true);
}

absl::Status TensorAssembler::CheckContinues(const v1::TensorHeader& header) const {
  HEADRACE_ASSIGN_OR_RETURN(const Tag tag, TagOf(header));
  const Received& received = current_->received;
  if (tag != received.tag || header.has_slot() || header.by_nccl()) {
    return absl::InvalidArgumentError(absl::StrCat("frame of ", ToText(tag), ", expected byte ",
                                                   current_->next_offset, " of ",
                                                   ToText(received.tag)));
  }
  if (header.element_type() != ToProto(received.tensor.type) ||
      !std::equal(header.shape().begin(), header.shape().end(), received.tensor.shape.begin(),
                  received.tensor.shape.end())) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToText(tag), ": type or shape differs from the tensor's first frame"));
  }
  const int64_t bytes = received.tensor.bytes();
  if (header.total_bytes() != bytes) return Wrong(tag, "total_bytes", header.total_bytes(), bytes);
  return absl::OkStatus();
}

absl::Status TensorAssembler::CheckRange(const v1::TensorHeader& header) const {
  const Received& received = current_->received;
  if (header.offset() != current_->next_offset) {
    return Wrong(received.tag, "offset", header.offset(), current_->next_offset);
  }
  const int64_t left = received.tensor.bytes() - current_->next_offset;
  if (header.length() < 1 || header.length() > left) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToText(received.tag), ": length ", header.length(), ", expected 1 to ", left));
  }
  return absl::OkStatus();
}

}  // namespace headrace
