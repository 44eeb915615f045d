#include "tests/cuda_emulation/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1  // clang
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define HEADRACE_ASAN(x) x
#else
#define HEADRACE_ASAN(x) (void)0
#endif

// This folder is compiled without -fsanitize=thread even for ThreadSanitizer's build: the
// scheduler's own accesses must not be taken for the kernel's.
#if defined(HEADRACE_EMULATION_TSAN)
extern "C" {
void* __tsan_get_current_fiber(void);
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}
#define HEADRACE_TSAN(x) x
#else
#define HEADRACE_TSAN(x) (void)0
#endif

#if !defined(__x86_64__)
#error "the CUDA emulation switches stacks by x86-64 assembly"
#endif

// Saves what the callee owns, trades stacks, restores.
extern "C" void headrace_switch_stacks(void** save, void* load);
asm(R"(
.text
.globl headrace_switch_stacks
.type headrace_switch_stacks,@function
headrace_switch_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size headrace_switch_stacks,.-headrace_switch_stacks
)");

namespace headrace::emulation {
namespace {

constexpr size_t kGuardBytes = 4096;
constexpr size_t kStackBytes = 256 << 10;
constexpr int kSavedRegisters = 6;

struct Scheduler {
  void* stack_pointer = nullptr;
  void* fake_stack = nullptr;
  const void* bottom = nullptr;
  size_t bytes = 0;
  void* tsan_fiber = nullptr;
};
Scheduler scheduler;

}  // namespace

Fiber::~Fiber() {
  HEADRACE_TSAN(if (tsan_fiber_ != nullptr) __tsan_destroy_fiber(tsan_fiber_));
  if (stack_ != nullptr) munmap(stack_ - kGuardBytes, kStackBytes + kGuardBytes);
}

void Fiber::Start(void (*entry)()) {
  if (stack_ == nullptr) {
    void* mapped = mmap(nullptr, kStackBytes + kGuardBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED || mprotect(mapped, kGuardBytes, PROT_NONE) != 0) {
      std::perror("no stack for an emulated CUDA thread");
      std::abort();
    }
    stack_ = static_cast<char*>(mapped) + kGuardBytes;
  }
  Unpoison(stack_, kStackBytes);
  asan_fake_stack_ = nullptr;
#if defined(HEADRACE_EMULATION_TSAN)
  if (tsan_fiber_ != nullptr) __tsan_destroy_fiber(tsan_fiber_);
  tsan_fiber_ = __tsan_create_fiber(0);
#endif
  void** top = reinterpret_cast<void**>(stack_ + kStackBytes - 64);
  *--top = nullptr;  // entry begins with the stack at 16n + 8, as behind a call
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < kSavedRegisters; ++i) *--top = nullptr;
  stack_pointer_ = top;
}

void Fiber::Resume() {
  HEADRACE_ASAN(__sanitizer_start_switch_fiber(&scheduler.fake_stack, stack_, kStackBytes));
  HEADRACE_TSAN(__tsan_switch_to_fiber(tsan_fiber_, 1));
  headrace_switch_stacks(&scheduler.stack_pointer, stack_pointer_);
  HEADRACE_ASAN(__sanitizer_finish_switch_fiber(scheduler.fake_stack, nullptr, nullptr));
}

[[gnu::noinline]] void Fiber::Yield() {
  HEADRACE_ASAN(
      __sanitizer_start_switch_fiber(&asan_fake_stack_, scheduler.bottom, scheduler.bytes));
  HEADRACE_TSAN(__tsan_switch_to_fiber(scheduler.tsan_fiber, 1));
  headrace_switch_stacks(&stack_pointer_, scheduler.stack_pointer);
  HEADRACE_ASAN(
      __sanitizer_finish_switch_fiber(asan_fake_stack_, &scheduler.bottom, &scheduler.bytes));
}

void Fiber::Entered() {
  HEADRACE_ASAN(__sanitizer_finish_switch_fiber(nullptr, &scheduler.bottom, &scheduler.bytes));
}

void Acquire([[maybe_unused]] void* place) { HEADRACE_TSAN(__tsan_acquire(place)); }
void Release([[maybe_unused]] void* place) { HEADRACE_TSAN(__tsan_release(place)); }
void EnterScheduler() { HEADRACE_TSAN(scheduler.tsan_fiber = __tsan_get_current_fiber()); }

void Poison([[maybe_unused]] const void* p, [[maybe_unused]] unsigned long bytes) {
  HEADRACE_ASAN(__asan_poison_memory_region(p, bytes));
}
void Unpoison([[maybe_unused]] const void* p, [[maybe_unused]] unsigned long bytes) {
  HEADRACE_ASAN(__asan_unpoison_memory_region(p, bytes));
}

}  // namespace headrace::emulation
