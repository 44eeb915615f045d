// A simulated device: what a worker started with `--device sim:…` says of itself. Its actions take
// declared time instead of computing, so that schedules, links and the coordinator can be tried at
// any size on one small machine.
//
//   sim:KEY=VALUE,KEY=VALUE,…
//
//   flops=10T        floating-point operations a second, from which actions take their time (K, M,
//                    G, T, P: powers of 1000)
//   action=20ms      every forward, recompute and backward of a stage, whatever its layers; of the
//                    largest micro-batch, smaller ones in proportion (ns, us, ms, s)
//   forward=20ms     one of the three; goes before `action` and `flops`, as do:
//   recompute=20ms
//   backward=40ms
//   memory=16GiB     what a stage may take; accounted, never touched. Default 16GiB
//   link=1Gbit/s     what one edge carries of what this device sends; also 125MB/s, 10MiB/s
//   latency=1ms      one way, of what this device sends
//
// Without `link` and `latency` tensors really travel, in their full size. With either, only their
// headers do, and they arrive when a wire of that kind would have brought them: one tensor at a
// time on each edge and direction, as in plan/replay.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "headrace/v1/job.pb.h"

namespace headrace {

inline constexpr std::string_view kSimPrefix = "sim:";
inline constexpr int64_t kDefaultSimMemoryBytes = int64_t{16} << 30;

struct SimFlag {
  v1::SimDevice device;
  int64_t memory_bytes = 0;  // 0: not given
};

// True for "sim" and "sim:…".
bool IsSimFlag(std::string_view text);

// "sim:…", as above.
//   INVALID_ARGUMENT  names key, value and what is expected: an unknown or repeated key, a value
//                     out of range or without its unit, no time for some action
absl::StatusOr<SimFlag> ParseSimFlag(std::string_view text);

// "simulated: 20 ms an action, link 125 MB/s + 1 ms".
std::string DescribeSim(const v1::SimDevice& device);

// INVALID_ARGUMENT: a number that ParseSimFlag would not have made.
absl::Status CheckSim(const v1::SimDevice& device);

// Seconds of one action of the largest micro-batch on a stage that needs `flops` for it.
double SimForwardSeconds(const v1::SimDevice& device, double flops);
double SimRecomputeSeconds(const v1::SimDevice& device, double flops);
double SimBackwardSeconds(const v1::SimDevice& device, double flops);
// Seconds `bytes` take on the wire from this device; 0 without a wire.
double SimLinkSeconds(const v1::SimDevice& device, int64_t bytes);

}  // namespace headrace
