// What the CPU backend's own loops share: how they are compiled and how they are split over
// threads.
//
// A kernel is a free function over a range, marked HEADRACE_KERNEL: compiled once per instruction
// set and chosen when the program starts. OpenMP stays outside it, since the compiler would outline
// a parallel region for the oldest instruction set only. Loops in kernels write their reductions
// out (reduce.h), so no option may reorder them and NaN goes through.
#pragma once

#include <algorithm>
#include <cstdint>

// Clang 14 does not know these targets, and the sanitizers' runtimes are not up yet when the loader
// runs the resolvers.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define HEADRACE_KERNEL \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define HEADRACE_KERNEL
#endif

// What a kernel calls must be inlined into it, to be compiled for its instruction set.
#define HEADRACE_INLINE inline __attribute__((always_inline))
#define HEADRACE_INLINE_LAMBDA __attribute__((always_inline))

namespace headrace {

// Calls body(begin, end) for disjoint ranges covering [0, count), one a thread; all but the last
// end at a multiple of `grain`. `threads` must be what omp_set_num_threads was given.
template <typename Body>
void ParallelRanges(int threads, int64_t count, int64_t grain, const Body& body) {
  const int64_t grains = (count + grain - 1) / grain;
  const int64_t parts = std::min<int64_t>(threads, grains);
  if (parts <= 1) {
    if (count > 0) body(int64_t{0}, count);
    return;
  }
#pragma omp parallel for schedule(static)
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t begin = grains * part / parts * grain;
    const int64_t end = std::min(count, grains * (part + 1) / parts * grain);
    body(begin, end);
  }
}

// Elements of a loop over elements: whole vectors, and too few are not worth a thread.
inline constexpr int64_t kElementGrain = 4096;

}  // namespace headrace
