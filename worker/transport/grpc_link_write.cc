// How tensors leave a GrpcLink: in frames, or copied into the receiver's memory.
#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "worker/transport/crc32c.h"
#include "worker/transport/frame.h"
#include "worker/transport/grpc_link.h"

namespace headrace {
namespace {

// No cache holds a tensor of this size until the receiver uses it.
constexpr int64_t kLargeBytes = 256 << 10;

}  // namespace

v1::TensorHeader GrpcLink::HeaderFor(v1::MessageKind kind) const {
  v1::TensorHeader header;
  header.set_job_id(context_.job_id);
  header.set_generation(context_.generation);
  header.set_from_stage(context_.stage);
  header.set_kind(kind);
  return header;
}

void GrpcLink::RunWriter() {
  Queued next;
  while (NextQueued(&next)) {
    const bool on_device = device_ != nullptr && next.outgoing.inline_bytes.empty();
    const bool open = on_device ? WriteFromDevice(std::move(next)) : WriteInHost(std::move(next));
    if (!open) return;  // the reader learns why
  }
  WriteEnd();
}

bool GrpcLink::WriteInHost(Queued queued) {
  return queued.slot ? WriteInPlace(std::move(queued.outgoing), *queued.slot)
                     : WriteTensor(std::move(queued.outgoing));
}

bool GrpcLink::NextQueued(Queued* queued) {
  absl::MutexLock lock(&mu_);
  const auto ready = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return Over() || (state_ == State::kOpen && (!queue_.empty() || finishing_));
  };
  mu_.Await(absl::Condition(&ready));
  if (Over() || queue_.empty()) return false;
  *queued = std::move(queue_.front());
  queue_.pop_front();
  return true;
}

v1::TensorHeader GrpcLink::HeaderOf(const Outgoing& outgoing) const {
  const Tag& tag = outgoing.tag;
  v1::TensorHeader header = HeaderFor(tag.kind);
  header.set_step(tag.step);
  header.set_chunk(tag.chunk);
  header.set_micro_batch(tag.micro_batch);
  header.set_element_type(ToProto(outgoing.tensor.type));
  header.mutable_shape()->Add(outgoing.tensor.shape.begin(), outgoing.tensor.shape.end());
  header.set_total_bytes(outgoing.tensor.bytes());
  return header;
}

bool GrpcLink::WriteTensor(Outgoing outgoing) {
  v1::TensorHeader header = HeaderOf(outgoing);
  SendBuffer* const buffer = SendBuffer::Create(std::move(outgoing), in_flight_);
  const Tensor& tensor = buffer->outgoing().tensor;
  const int64_t total = tensor.bytes();
  bool open = true;
  for (int64_t offset = 0; open && offset < total; offset += kChunkBytes) {
    const int64_t length = std::min(kChunkBytes, total - offset);
    header.set_offset(offset);
    header.set_length(length);
    header.set_crc32c(ExtendCrc32c(0, static_cast<const char*>(tensor.data) + offset,
                                   static_cast<size_t>(length)));
    open = WriteFrame(EncodeFrame(header, buffer->SliceOf(offset, length)), grpc::WriteOptions());
  }
  buffer->Unref();
  return open;
}

bool GrpcLink::WriteInPlace(Outgoing outgoing, int64_t slot) {
  const int64_t total = outgoing.tensor.bytes();
  char* const to = region_->At(slot, total);
  if (to == nullptr) {
    absl::MutexLock lock(&mu_);
    bad_slot_ = true;
    client_context_->TryCancel();
    return false;
  }
  v1::TensorHeader header = HeaderOf(outgoing);
  header.set_slot(slot);
  header.set_length(total);
  header.set_crc32c(CopyAndExtendCrc32c(0, to, outgoing.tensor.data, static_cast<size_t>(total),
                                        total >= kLargeBytes));
  outgoing = Outgoing{};  // its own slot is free
  return WriteFrame(EncodeFrame(header), grpc::WriteOptions());
}

bool GrpcLink::WriteFrame(const grpc::ByteBuffer& frame, grpc::WriteOptions options) {
  {
    absl::MutexLock lock(&mu_);
    write_began_ = absl::Now();
  }
  const bool open = stream_->Write(frame, options);
  absl::MutexLock lock(&mu_);
  write_began_ = absl::InfiniteFuture();
  return open;
}

void GrpcLink::WriteEnd() {
  {
    absl::MutexLock lock(&mu_);
    if (Over()) return;  // while it connects, a trial may be using the device's end
    end_written_ = true;
  }
  if (device_ != nullptr) device_->CloseMemory();
  WriteFrame(EncodeFrame(HeaderFor(v1::MESSAGE_KIND_END)), grpc::WriteOptions().set_last_message());
}

}  // namespace headrace
