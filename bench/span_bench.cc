// What recording costs a step: one span (two readings of the clock included), and its part of the
// report after the step. A micro-batch makes 8 to 15 spans.
#include <benchmark/benchmark.h>

#include <string>

#include "common/steady_clock.h"
#include "worker/pipeline/span_recorder.h"

namespace headrace {
namespace {

constexpr int kSpans = 1000;

void AddOne(SpanRecorder* spans, int i) {
  Span span;
  span.kind = v1::SPAN_KIND_FORWARD;
  span.step = 1000;
  span.micro_batch = i;
  span.begin_ns = SteadyNanos();
  span.end_ns = SteadyNanos();
  spans->Add(span);
}

void Record(benchmark::State& state) {
  SpanRecorder spans(kSpans);
  int i = 0;
  for (auto _ : state) AddOne(&spans, i++ % 128);
}
BENCHMARK(Record);

// Items are spans.
void Report(benchmark::State& state) {
  SpanRecorder spans(kSpans);
  std::string bytes;
  for (auto _ : state) {
    state.PauseTiming();
    for (int i = 0; i < kSpans; ++i) AddOne(&spans, i % 128);
    state.ResumeTiming();
    bytes = spans.Drain().SerializeAsString();
  }
  state.SetItemsProcessed(state.iterations() * kSpans);
  state.counters["bytes_per_span"] =
      static_cast<double>(bytes.size()) / static_cast<double>(kSpans);
}
BENCHMARK(Report);

}  // namespace
}  // namespace headrace

BENCHMARK_MAIN();
