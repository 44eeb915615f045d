// Outlasting a coordinator that is away for a while: restarted, or cut off.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/interrupt.h"

namespace headrace {

// How a command waits for what a coordinator is to tell it.
struct WaitOptions {
  absl::Time deadline = absl::InfiniteFuture();  // of the whole command
  Interrupt* interrupt = nullptr;                // never null in use; must outlive the wait
  absl::Duration patience = absl::Minutes(10);   // with a coordinator that does not answer
  std::function<void(const std::string&)> say;   // a line for people; may be empty
  // Asked before each new try; what it says ends the wait. May be empty.
  std::function<absl::Status()> check;
};

// Says once that nobody answers, tries again with growing pauses, says when somebody does, and
// gives up. Used by one thread.
class Patience {
 public:
  Patience(std::string address, WaitOptions options)
      : address_(std::move(address)), options_(std::move(options)) {}

  // After a call that failed with `why`, because nobody answers: returns OK when the next try is
  // due, which may be at the deadline.
  //   UNAVAILABLE  `patience` is over: `why`, and how long was tried
  //   CANCELLED    the interrupt fired
  //   what `check` says
  absl::Status Wait(const absl::Status& why);

  // After a call that somebody answered.
  void Answered();

 private:
  void Say(const std::string& line) const {
    if (options_.say) options_.say(line);
  }

  const std::string address_;
  const WaitOptions options_;
  absl::Time since_ = absl::InfiniteFuture();  // since when nobody answers
  absl::Duration pause_;
};

}  // namespace headrace
