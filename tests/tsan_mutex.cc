// Linked into programs of the tsan build. Debian's Abseil is not instrumented, so ThreadSanitizer
// would see none of absl::Mutex's order and report every guarded member as a race. These stand in
// front of the library's functions, call them, and tell the sanitizer what they order.
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
}

namespace {

// The library's own function, under the name Debian's inline namespace gives it.
template <typename Function>
Function* Real(const char* mangled) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, mangled));
}

// While the library runs it may evaluate the conditions of other threads, under their lock.
class Ignored {
 public:
  Ignored() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }
  ~Ignored() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
};

}  // namespace

#define HEADRACE_REAL(mangled, ...) static const auto real = Real<__VA_ARGS__>(mangled)

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::Lock() {
  HEADRACE_REAL("_ZN4absl7debian35Mutex4LockEv", void(Mutex*));
  real(this);
  __tsan_acquire(this);
}

void Mutex::Unlock() {
  HEADRACE_REAL("_ZN4absl7debian35Mutex6UnlockEv", void(Mutex*));
  __tsan_release(this);
  Ignored ignored;
  real(this);
}

bool Mutex::TryLock() {
  HEADRACE_REAL("_ZN4absl7debian35Mutex7TryLockEv", bool(Mutex*));
  const bool locked = real(this);
  if (locked) __tsan_acquire(this);
  return locked;
}

void Mutex::ReaderLock() {
  HEADRACE_REAL("_ZN4absl7debian35Mutex10ReaderLockEv", void(Mutex*));
  real(this);
  __tsan_acquire(this);
}

void Mutex::ReaderUnlock() {
  HEADRACE_REAL("_ZN4absl7debian35Mutex12ReaderUnlockEv", void(Mutex*));
  __tsan_release(this);
  Ignored ignored;
  real(this);
}

void Mutex::Await(const Condition& condition) {
  HEADRACE_REAL("_ZN4absl7debian35Mutex5AwaitERKNS0_9ConditionE", void(Mutex*, const Condition&));
  __tsan_release(this);
  {
    Ignored ignored;
    real(this, condition);
  }
  __tsan_acquire(this);
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  HEADRACE_REAL("_ZN4absl7debian35Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE",
                bool(Mutex*, const Condition&, Duration));
  __tsan_release(this);
  bool result;
  {
    Ignored ignored;
    result = real(this, condition, timeout);
  }
  __tsan_acquire(this);
  return result;
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  HEADRACE_REAL("_ZN4absl7debian35Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE",
                bool(Mutex*, const Condition&, Time));
  __tsan_release(this);
  bool result;
  {
    Ignored ignored;
    result = real(this, condition, deadline);
  }
  __tsan_acquire(this);
  return result;
}

void Mutex::LockWhen(const Condition& condition) {
  HEADRACE_REAL("_ZN4absl7debian35Mutex8LockWhenERKNS0_9ConditionE",
                void(Mutex*, const Condition&));
  {
    Ignored ignored;
    real(this, condition);
  }
  __tsan_acquire(this);
}

void CondVar::Wait(Mutex* mu) {
  HEADRACE_REAL("_ZN4absl7debian37CondVar4WaitEPNS0_5MutexE", void(CondVar*, Mutex*));
  __tsan_release(mu);
  {
    Ignored ignored;
    real(this, mu);
  }
  __tsan_acquire(mu);
}

bool CondVar::WaitWithTimeout(Mutex* mu, Duration timeout) {
  HEADRACE_REAL("_ZN4absl7debian37CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE",
                bool(CondVar*, Mutex*, Duration));
  __tsan_release(mu);
  bool result;
  {
    Ignored ignored;
    result = real(this, mu, timeout);
  }
  __tsan_acquire(mu);
  return result;
}

bool CondVar::WaitWithDeadline(Mutex* mu, Time deadline) {
  HEADRACE_REAL("_ZN4absl7debian37CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE",
                bool(CondVar*, Mutex*, Time));
  __tsan_release(mu);
  bool result;
  {
    Ignored ignored;
    result = real(this, mu, deadline);
  }
  __tsan_acquire(mu);
  return result;
}

void Notification::Notify() {
  HEADRACE_REAL("_ZN4absl7debian312Notification6NotifyEv", void(Notification*));
  __tsan_release(this);
  real(this);
}

void Notification::WaitForNotification() const {
  HEADRACE_REAL("_ZNK4absl7debian312Notification19WaitForNotificationEv",
                void(const Notification*));
  real(this);
  __tsan_acquire(const_cast<Notification*>(this));
}

bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  HEADRACE_REAL("_ZNK4absl7debian312Notification30WaitForNotificationWithTimeoutENS0_8DurationE",
                bool(const Notification*, Duration));
  const bool result = real(this, timeout);
  __tsan_acquire(const_cast<Notification*>(this));
  return result;
}

ABSL_NAMESPACE_END
}  // namespace absl
