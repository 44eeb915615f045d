// A CUDA thread on a CPU: a stack of its own, entered by the scheduler and left by itself.
// One scheduler at a time, on one system thread; not thread-safe.
//
//   scheduler                fiber
//   Start(entry)
//   Resume()  ───────────▶   entry(): Fiber::Entered(), …
//             ◀───────────   Yield()
//   Resume()  ───────────▶   … goes on behind Yield()
//
// The sanitizers are told of every switch: AddressSanitizer which stack is in use, ThreadSanitizer
// that each fiber is a thread, so that two of them touching one word without a barrier is a race.
// Switching orders nothing by itself; Acquire and Release do.
#pragma once

namespace headrace::emulation {

class Fiber {
 public:
  Fiber() = default;
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // A fresh stack on which `entry`, which never returns, begins at the next Resume. What was on the
  // stack before is abandoned, not unwound.
  void Start(void (*entry)());
  // Runs the fiber until it yields. For the scheduler.
  void Resume();
  // Back to the scheduler. For the fiber itself.
  void Yield();
  // The first thing `entry` does.
  static void Entered();

 private:
  void* stack_pointer_ = nullptr;
  char* stack_ = nullptr;
  void* tsan_fiber_ = nullptr;
  void* asan_fake_stack_ = nullptr;
};

// What one fiber did before Release(place) is visible to whoever calls Acquire(place) after it.
// Nothing without ThreadSanitizer.
void Acquire(void* place);
void Release(void* place);

// Called once on the scheduler's thread before the fibers of a grid are resumed.
void EnterScheduler();

// Memory that kernels must not touch, or may again. Nothing without AddressSanitizer.
void Poison(const void* p, unsigned long bytes);
void Unpoison(const void* p, unsigned long bytes);

}  // namespace headrace::emulation
