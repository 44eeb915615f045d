#include "client/patience.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/render/human.h"
#include "common/status.h"

namespace headrace {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(200);
constexpr absl::Duration kLongestPause = absl::Seconds(3);

std::string Seconds(absl::Duration time) { return FormatSeconds(absl::ToDoubleSeconds(time)); }

}  // namespace

absl::Status Patience::Wait(const absl::Status& why) {
  if (options_.check) HEADRACE_RETURN_IF_ERROR(options_.check());
  const absl::Time now = absl::Now();
  if (since_ == absl::InfiniteFuture()) {
    since_ = now;
    pause_ = kFirstPause;
    if (options_.patience > absl::ZeroDuration() && now < options_.deadline) {
      Say(absl::StrCat("the coordinator at ", address_, " does not answer; trying again for ",
                       Seconds(std::min(options_.patience, options_.deadline - now))));
    }
  }
  const absl::Time over = since_ + options_.patience;
  if (now >= over) {
    if (options_.patience <= absl::ZeroDuration()) return why;
    return absl::UnavailableError(
        absl::StrCat(std::string(why.message()), "; tried again for ", Seconds(options_.patience)));
  }
  const absl::Duration pause = std::min({pause_, over - now, options_.deadline - now});
  if (options_.interrupt->Sleep(pause)) return absl::CancelledError("interrupted");
  pause_ = std::min(2 * pause_, kLongestPause);
  return absl::OkStatus();
}

void Patience::Answered() {
  if (since_ == absl::InfiniteFuture()) return;
  Say(absl::StrCat("the coordinator at ", address_, " answers again, after ",
                   Seconds(absl::Now() - since_)));
  since_ = absl::InfiniteFuture();
}

}  // namespace headrace
