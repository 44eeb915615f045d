// Ctrl-C. A command that has something to put in order listens; without a listener the process ends
// at once, and so it does on the second signal.
#pragma once

#include <functional>
#include <map>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace headrace {

// Thread-safe.
class Interrupt {
 public:
  Interrupt() = default;
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  // Starts the thread that waits for SIGINT and SIGTERM, which BlockSignals must have blocked. It
  // ends with the process only, so `this` must live as long.
  void ListenForSignals();

  // What the signal thread calls: wakes the waiters, calls the listeners. The process ends with 130
  // if there are none, or if this is the second time.
  void Fire();

  bool fired() const {
    absl::MutexLock lock(&mu_);
    return fired_;
  }

  // Sleeps, or returns true at once when fired.
  bool Sleep(absl::Duration duration);

  // Calls `action` (which must not block) when fired: at once, if that was before. Until it is
  // gone, Ctrl-C no longer ends the process by itself.
  class Listener {
   public:
    Listener(Interrupt* interrupt, std::function<void()> action);
    ~Listener();
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;

   private:
    Interrupt* const interrupt_;
    const void* const key_ = this;
  };

 private:
  mutable absl::Mutex mu_;
  bool fired_ ABSL_GUARDED_BY(mu_) = false;
  std::map<const void*, std::function<void()>> listeners_ ABSL_GUARDED_BY(mu_);
};

}  // namespace headrace
