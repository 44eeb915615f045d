#include "client/interrupt.h"

#include <unistd.h>

#include <utility>

#include "client/exit_code.h"
#include "common/process.h"

namespace headrace {

void Interrupt::ListenForSignals() {
  std::thread([this] {
    while (true) {
      WaitForSignal();
      Fire();
    }
  }).detach();
}

void Interrupt::Fire() {
  // Listeners run under the lock, so that none runs after its destructor. They only cancel calls.
  absl::MutexLock lock(&mu_);
  if (fired_ || listeners_.empty()) _exit(static_cast<int>(ExitCode::kInterrupted));
  fired_ = true;
  for (const auto& [key, action] : listeners_) action();
}

bool Interrupt::Sleep(absl::Duration duration) {
  absl::MutexLock lock(&mu_);
  return mu_.AwaitWithTimeout(absl::Condition(&fired_), duration);
}

Interrupt::Listener::Listener(Interrupt* interrupt, std::function<void()> action)
    : interrupt_(interrupt) {
  absl::MutexLock lock(&interrupt_->mu_);
  if (interrupt_->fired_) action();
  interrupt_->listeners_.emplace(key_, std::move(action));
}

Interrupt::Listener::~Listener() {
  absl::MutexLock lock(&interrupt_->mu_);
  interrupt_->listeners_.erase(key_);
}

}  // namespace headrace
