// Its own life as a span of the trace, at the exchange's position, and as seconds of a total.
#pragma once

#include <cstdint>

#include "common/steady_clock.h"
#include "worker/pipeline/exchange.h"

namespace headrace {

// Owned by the compute thread. Spans of one stage that compute do not overlap: nothing timed here
// may wait for another stage.
class TimedSpan {
 public:
  // `exchange` and `seconds` (may be null: no total) must outlive this.
  TimedSpan(Exchange* exchange, v1::SpanKind kind, double* seconds = nullptr)
      : exchange_(exchange), kind_(kind), seconds_(seconds), begin_ns_(SteadyNanos()) {}
  ~TimedSpan() {
    const int64_t end_ns = SteadyNanos();
    exchange_->AddSpan(kind_, begin_ns_, end_ns);
    if (seconds_ != nullptr) *seconds_ += static_cast<double>(end_ns - begin_ns_) * 1e-9;
  }
  TimedSpan(const TimedSpan&) = delete;
  TimedSpan& operator=(const TimedSpan&) = delete;

 private:
  Exchange* const exchange_;
  const v1::SpanKind kind_;
  double* const seconds_;
  const int64_t begin_ns_;
};

}  // namespace headrace
