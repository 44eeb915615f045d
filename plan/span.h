// A stretch of time one stage spent on one thing, and how many of them travel: as the columns of a
// StageTrace, some 16 bytes a span.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "headrace/v1/cluster.pb.h"

namespace headrace {

struct Span {
  v1::SpanKind kind = v1::SPAN_KIND_UNSPECIFIED;
  int64_t step = 0;
  int micro_batch = -1;  // −1: none
  // Of the tensor that was waited for, sent or received.
  v1::MessageKind message = v1::MESSAGE_KIND_UNSPECIFIED;
  int peer = -1;  // its other stage; −1: none
  int64_t bytes = 0;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;

  friend bool operator==(const Span&, const Span&) = default;
};

// Appends to the columns of an empty `trace`, and sets its first and last step.
void PackSpans(const std::vector<Span>& spans, v1::StageTrace* trace);

// In the order they were packed, on the clock they were taken with.
//   INVALID_ARGUMENT  columns of different lengths, or a span that ends before it begins
absl::StatusOr<std::vector<Span>> UnpackSpans(const v1::StageTrace& trace);

}  // namespace headrace
