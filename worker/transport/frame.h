// One frame of a tensor stream: a header that says which bytes of which tensor follow, then those
// bytes. The layout, with a worked example, is docs/format-frame.md. A frame is also a valid
// serialized StreamTensorsRequest, built without ever copying the payload into a message.
// Pure; any thread.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "headrace/v1/tensor.pb.h"
#include "worker/backend/tensor.h"
#include "worker/pipeline/tag.h"

namespace headrace {

// A frame carries at most this much of a tensor: a larger one would hold back what is behind it,
// and gRPC buffers a message whole.
inline constexpr int64_t kChunkBytes = 1 << 20;
// Longer headers are refused before they are parsed.
inline constexpr int64_t kMaxHeaderBytes = 4096;

// The payload of a received frame, in the slices it arrived in.
class Payload {
 public:
  Payload() = default;
  // The bytes of `slices` after the first `skip`.
  Payload(std::vector<grpc::Slice> slices, int64_t skip);

  int64_t size() const { return size_; }
  // Copies all of it to `destination` and returns its CRC-32C.
  uint32_t CopyTo(void* destination) const;

 private:
  std::vector<grpc::Slice> slices_;
  int64_t skip_ = 0;
  int64_t size_ = 0;
};

struct Frame {
  v1::TensorHeader header;
  Payload payload;
};

// `header` with its fields 10–13 (offset … crc32c) already set, and `payload` = the bytes they
// describe. The buffer refers to the payload slice.
grpc::ByteBuffer EncodeFrame(const v1::TensorHeader& header, const grpc::Slice& payload);
// A frame without payload: HELLO, ATTACHED, END, and a tensor in shared memory.
grpc::ByteBuffer EncodeFrame(const v1::TensorHeader& header);

// Takes a received message apart; copies nothing but the header.
//   INVALID_ARGUMENT  not a frame, the header is too long, or the payload is not exactly as long as
//                     the header's `length` (absent, where the bytes go another way) or longer than
//                     kChunkBytes
absl::StatusOr<Frame> DecodeFrame(grpc::ByteBuffer message);

v1::ElementType ToProto(ElementType type);
//   INVALID_ARGUMENT  unspecified, or a value this program does not know
absl::StatusOr<ElementType> FromProto(v1::ElementType type);

// INVALID_ARGUMENT: a field is out of the range any plan can use (negative, or over 2^31).
absl::StatusOr<Tag> TagOf(const v1::TensorHeader& header);

}  // namespace headrace
