// How fast this machine multiplies matrices: what a worker tells the planner when it registers.
#pragma once

namespace headrace {

// Floating-point operations a second of fp32 matrix products of a transformer's size, on `threads`
// OpenMP threads: the best of what fits into about 0.2 s, so that a busy moment does not count.
// Blocks for that long. Leaves the calling thread's OpenMP threads as they were.
double MeasureFlops(int threads);

}  // namespace headrace
