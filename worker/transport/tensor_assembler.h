// Puts the frames of one stream together again, straight into the inbox's memory, or finds them
// there if the sender shares it. Every field of a header is checked, against the stream, the plan
// and the frames before, before a byte is copied or memory taken; what a header claims is never
// used as a size. Used by one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/pipeline/inbox.h"
#include "worker/transport/frame.h"
#include "worker/transport/link.h"

namespace headrace {

class TensorAssembler {
 public:
  // Whether the sender may begin this tensor now (its credit).
  using Admit = std::function<absl::Status(const Tag& tag)>;
  // The same for a tensor that it says lies in shared memory at `offset`: the slot there, if it is
  // one that was granted for such tensors.
  using Claim = std::function<absl::StatusOr<Slot>(const Tag& tag, int64_t offset)>;
  // Brings a tensor of a stage on a device to the device: what is staged, or what comes by NCCL.
  using Bring = std::function<absl::Status(Received* received, bool by_nccl)>;

  // `inbox` must outlive this. `bring`: null where tensors lie in host memory.
  TensorAssembler(const LinkContext& context, int from_stage, Inbox* inbox, Admit admit,
                  Claim claim, Bring bring = nullptr);

  // Takes the next frame, HELLO excepted; after the last one of a tensor, Puts it into the inbox.
  // Every error names what was expected and what came, and ends the stream:
  //   FAILED_PRECONDITION  another job or generation
  //   INVALID_ARGUMENT     another sender, unexpected tag, type, shape, size, offset or length; an
  //                        END inside a tensor, a frame after END
  //   DATA_LOSS            the checksum differs
  //   else                 what `admit`, `claim`, `bring`, Inbox::Prepare or Inbox::Put said
  absl::Status Accept(const Frame& frame);

  // An END frame has come.
  bool ended() const { return ended_; }

 private:
  struct Current {
    Received received;
    int64_t next_offset = 0;
  };

  absl::Status CheckSender(const v1::TensorHeader& header) const;
  absl::Status AcceptEnd(const v1::TensorHeader& header);
  absl::Status Begin(const v1::TensorHeader& header);
  absl::Status AcceptInPlace(const v1::TensorHeader& header);
  absl::Status AcceptByNccl(const v1::TensorHeader& header);
  absl::Status Deliver(Received received, bool by_nccl = false);
  absl::Status CheckContinues(const v1::TensorHeader& header) const;
  absl::Status CheckRange(const v1::TensorHeader& header) const;

  const LinkContext context_;
  const int from_stage_;
  Inbox* const inbox_;
  const Admit admit_;
  const Claim claim_;
  const Bring bring_;
  std::optional<Current> current_;
  bool ended_ = false;
};

}  // namespace headrace
