#include "worker/transport/frame.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/transport/crc32c.h"

namespace headrace {
namespace {

using ::google::protobuf::io::CodedInputStream;
using ::google::protobuf::io::CodedOutputStream;

// Field 1 (header) and field 2 (payload) of StreamTensorsRequest, both length-delimited.
constexpr uint8_t kHeaderKey = 0x0a;
constexpr uint8_t kPayloadKey = 0x12;
constexpr int kMaxVarintBytes = 10;

std::string EncodePrefix(const v1::TensorHeader& header, int64_t payload_bytes) {
  const size_t header_bytes = header.ByteSizeLong();
  std::string prefix(header_bytes + 2 + 2 * kMaxVarintBytes, '\0');
  uint8_t* const begin = reinterpret_cast<uint8_t*>(prefix.data());
  uint8_t* p = begin;
  *p++ = kHeaderKey;
  p = CodedOutputStream::WriteVarint64ToArray(header_bytes, p);
  p = header.SerializeWithCachedSizesToArray(p);
  if (payload_bytes > 0) {
    *p++ = kPayloadKey;
    p = CodedOutputStream::WriteVarint64ToArray(static_cast<uint64_t>(payload_bytes), p);
  }
  prefix.resize(static_cast<size_t>(p - begin));
  return prefix;
}

// Reads the header and the payload's length; the payload's own bytes stay where they are.
absl::Status ReadPrefix(CodedInputStream* in, v1::TensorHeader* header, uint64_t* payload_bytes) {
  uint32_t header_bytes = 0;
  if (in->ReadTag() != kHeaderKey || !in->ReadVarint32(&header_bytes)) {
    return absl::InvalidArgumentError("frame: does not begin with a header");
  }
  if (header_bytes > kMaxHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat("frame: header of ", header_bytes,
                                                   " bytes, expected at most ", kMaxHeaderBytes));
  }
  // From memory of its own: of a stream, protobuf takes a field's length for true, up to 50 MB.
  std::array<char, kMaxHeaderBytes> bytes;
  if (!in->ReadRaw(bytes.data(), static_cast<int>(header_bytes)) ||
      !header->ParseFromArray(bytes.data(), static_cast<int>(header_bytes))) {
    return absl::InvalidArgumentError("frame: header cannot be parsed");
  }
  const uint32_t key = in->ReadTag();
  if (key == 0 && in->ConsumedEntireMessage()) return absl::OkStatus();
  if (key != kPayloadKey || !in->ReadVarint64(payload_bytes)) {
    return absl::InvalidArgumentError("frame: no payload after the header");
  }
  return absl::OkStatus();
}

absl::Status CheckLengths(const v1::TensorHeader& header, uint64_t written, int64_t arrived) {
  if (written != static_cast<uint64_t>(arrived)) {
    return absl::InvalidArgumentError(absl::StrCat("frame: payload field of ", written,
                                                   " bytes, but ", arrived, " bytes arrived"));
  }
  if (header.has_slot() || header.by_nccl()) {  // the bytes lie elsewhere
    if (arrived == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("frame: ", header.has_slot() ? "a slot" : "NCCL",
                                                   " and a payload of ", arrived,
                                                   " bytes, expected one of them"));
  }
  if (header.length() != arrived) {
    return absl::InvalidArgumentError(absl::StrCat("frame: header says length ", header.length(),
                                                   ", but the payload has ", arrived, " bytes"));
  }
  if (arrived > kChunkBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("frame: payload of ", arrived, " bytes, expected at most ", kChunkBytes));
  }
  return absl::OkStatus();
}

}  // namespace

Payload::Payload(std::vector<grpc::Slice> slices, int64_t skip)
    : slices_(std::move(slices)), skip_(skip), size_(-skip) {
  for (const grpc::Slice& slice : slices_) size_ += static_cast<int64_t>(slice.size());
}

uint32_t Payload::CopyTo(void* destination) const {
  char* out = static_cast<char*>(destination);
  uint32_t crc = 0;
  int64_t skip = skip_;
  for (const grpc::Slice& slice : slices_) {
    const int64_t size = static_cast<int64_t>(slice.size());
    if (skip >= size) {
      skip -= size;
      continue;
    }
    const size_t length = static_cast<size_t>(size - skip);
    // Not past the cache, where the slice has just been put.
    crc = CopyAndExtendCrc32c(crc, out, slice.begin() + skip, length, /*past_cache=*/false);
    out += length;
    skip = 0;
  }
  return crc;
}

grpc::ByteBuffer EncodeFrame(const v1::TensorHeader& header, const grpc::Slice& payload) {
  const grpc::Slice slices[] = {
      grpc::Slice(EncodePrefix(header, static_cast<int64_t>(payload.size()))), payload};
  return grpc::ByteBuffer(slices, 2);
}

grpc::ByteBuffer EncodeFrame(const v1::TensorHeader& header) {
  const grpc::Slice slice(EncodePrefix(header, 0));
  return grpc::ByteBuffer(&slice, 1);
}

absl::StatusOr<Frame> DecodeFrame(grpc::ByteBuffer message) {
  Frame frame;
  if (!message.Valid()) return absl::InvalidArgumentError("frame: empty message");
  uint64_t payload_bytes = 0;
  int64_t prefix_bytes = 0;
  {
    grpc::ProtoBufferReader reader(&message);
    CodedInputStream in(&reader);
    if (absl::Status read = ReadPrefix(&in, &frame.header, &payload_bytes); !read.ok()) return read;
    prefix_bytes = in.CurrentPosition();
  }
  std::vector<grpc::Slice> slices;
  if (!message.Dump(&slices).ok()) return absl::InvalidArgumentError("frame: unreadable message");
  frame.payload = Payload(std::move(slices), prefix_bytes);
  if (absl::Status ok = CheckLengths(frame.header, payload_bytes, frame.payload.size()); !ok.ok()) {
    return ok;
  }
  return frame;
}

v1::ElementType ToProto(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return v1::ELEMENT_TYPE_FLOAT32;
    case ElementType::kInt32:
      return v1::ELEMENT_TYPE_INT32;
    case ElementType::kFloat64:
      return v1::ELEMENT_TYPE_FLOAT64;
    case ElementType::kBfloat16:
      return v1::ELEMENT_TYPE_BFLOAT16;
  }
  return v1::ELEMENT_TYPE_UNSPECIFIED;
}

absl::StatusOr<ElementType> FromProto(v1::ElementType type) {
  switch (type) {
    case v1::ELEMENT_TYPE_FLOAT32:
      return ElementType::kFloat32;
    case v1::ELEMENT_TYPE_INT32:
      return ElementType::kInt32;
    case v1::ELEMENT_TYPE_FLOAT64:
      return ElementType::kFloat64;
    case v1::ELEMENT_TYPE_BFLOAT16:
      return ElementType::kBfloat16;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("element type ", static_cast<int>(type),
                       ", expected 1 (float32), 2 (int32), 3 (float64) or 4 (bfloat16)"));
  }
}

absl::StatusOr<Tag> TagOf(const v1::TensorHeader& header) {
  constexpr int64_t kMax = std::numeric_limits<int>::max();
  const std::pair<const char*, int64_t> fields[] = {{"from_stage", header.from_stage()},
                                                    {"chunk", header.chunk()},
                                                    {"micro_batch", header.micro_batch()}};
  for (const auto& [name, value] : fields) {
    if (value < 0 || value > kMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("frame: ", name, " ", value, ", expected 0 to ", kMax));
    }
  }
  return Tag{.kind = header.kind(),
             .from_stage = static_cast<int>(header.from_stage()),
             .step = header.step(),
             .chunk = static_cast<int>(header.chunk()),
             .micro_batch = static_cast<int>(header.micro_batch())};
}

}  // namespace headrace
