#include "worker/transport/dial.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

absl::Time Soon() { return absl::Now() + absl::Seconds(20); }

// A resolver that does not answer before it is told to.
class SilentResolver {
 public:
  ~SilentResolver() {
    if (!state_->answer.HasBeenNotified()) state_->answer.Notify();
    state_->answered.WaitForNotification();
  }
  Resolver get() const {
    return [state = state_](const char*, const char*, const addrinfo*, addrinfo**) {
      state->answer.WaitForNotification();
      state->answered.Notify();
      return EAI_AGAIN;
    };
  }

 private:
  struct State {
    absl::Notification answer, answered;
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

// The system's resolver may take half a minute for a name, ten times what connecting may take.
TEST(DialTest, AResolverThatDoesNotAnswerIsNotWaitedForBeyondTheDeadline) {
  const SilentResolver resolver;
  const absl::Time began = absl::Now();
  const absl::Status status =
      Dial("some-host:7070", absl::Now() + absl::Milliseconds(100), nullptr, resolver.get())
          .status();
  EXPECT_LT(absl::Now() - began, absl::Seconds(3));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("cannot look up some-host: the resolver does not answer"));
}

TEST(DialTest, ALookupIsCancelled) {
  const SilentResolver resolver;
  Cancellation cancellation;
  absl::Status status;
  std::thread dialling(
      [&] { status = Dial("some-host:7070", Soon(), &cancellation, resolver.get()).status(); });
  const absl::Time began = absl::Now();
  cancellation.Cancel();
  dialling.join();
  EXPECT_LT(absl::Now() - began, absl::Seconds(3));
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
}

TEST(DialTest, AHostThatIsNotThereIsNamed) {
  const auto refuses = [](const char*, const char*, const addrinfo*, addrinfo**) {
    return EAI_NONAME;
  };
  const absl::Status status = Dial("some-host:7070", Soon(), nullptr, refuses).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot look up some-host: "));
}

TEST(DialTest, NumbersAreNotLookedUp) {
  const auto never = [](const char*, const char*, const addrinfo*, addrinfo**) {
    ADD_FAILURE() << "looked up";
    return EAI_FAIL;
  };
  EXPECT_EQ(Dial("127.0.0.1:1", Soon(), nullptr, never).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(Dial("[::1]:1", Soon(), nullptr, never).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST(DialTest, ConnectsToAnAbstractSocket) {
  const std::string name = absl::StrCat("headrace-dial-test-", getpid());
  const std::string address = absl::StrCat("unix-abstract:", name);
  EXPECT_EQ(Dial(address, Soon(), nullptr).status().code(), absl::StatusCode::kUnavailable);
  sockaddr_un own = {};
  own.sun_family = AF_UNIX;
  name.copy(own.sun_path + 1, name.size());
  const Socket listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(listener.fd(), reinterpret_cast<const sockaddr*>(&own),
                 static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())),
            0);
  ASSERT_EQ(listen(listener.fd(), 1), 0);
  EXPECT_TRUE(Dial(address, Soon(), nullptr).ok());
  for (const std::string& bad : {std::string(), std::string(108, 'x')}) {
    EXPECT_EQ(Dial(absl::StrCat("unix-abstract:", bad), Soon(), nullptr).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace headrace
