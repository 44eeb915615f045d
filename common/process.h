// What every program does first: memory allocator, signals, OpenMP's waiting.
#pragma once

#include <functional>

#include "absl/time/time.h"

namespace headrace {

// glibc's malloc gives freed tensor slices back to the kernel at once; keeping them is worth 3–8×
// in transport (docs/performance.md). Call before any thread exists.
void TuneMalloc();

// Blocks SIGTERM and SIGINT in this thread and all later ones (before any gRPC object exists, else
// the process dies with 143), and ignores SIGPIPE.
void BlockSignals();
// Waits for SIGTERM or SIGINT; returns its number.
int WaitForSignal();
// Whether one of them comes within `timeout`, for which it waits.
bool SignalComes(absl::Duration timeout);

// In the environment of a child: its parent's pid, so that a child slow to start notices that the
// parent died before DieWithParent was called.
inline constexpr char kParentPidVariable[] = "HEADRACE_PARENT_PID";

// Ends this process when its parent dies, however it dies; at once if it has. For children of
// `headrace run`.
void DieWithParent();

}  // namespace headrace
