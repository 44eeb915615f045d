#include "common/listen_error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

std::string Says(const std::string& address) { return std::string(ListenError(address).message()); }

TEST(ListenErrorTest, AHostNobodyKnowsIsNotAnAddressInUse) {
  EXPECT_EQ(ListenError("no-such-host.invalid:7070").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Says("no-such-host.invalid:7070"),
              HasSubstr("cannot listen on no-such-host.invalid:7070: no host "
                        "'no-such-host.invalid' is known"));
}

TEST(ListenErrorTest, AnAddressOfAnotherMachine) {
  // RFC 5737: nobody's.
  EXPECT_EQ(Says("192.0.2.1:7070"),
            "cannot listen on 192.0.2.1:7070: this machine has no such address; 0.0.0.0 means all "
            "it has");
}

TEST(ListenErrorTest, AnAddressInUse) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(at);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&at), size), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size), 0);
  const std::string address = absl::StrCat("127.0.0.1:", ntohs(at.sin_port));
  EXPECT_EQ(ListenError(address), absl::UnavailableError(absl::StrCat("cannot listen on ", address,
                                                                      ": the address is in use")));
  close(fd);
}

TEST(ListenErrorTest, NothingStandsAgainstItAnyMore) {
  EXPECT_EQ(Says("127.0.0.1:0"), "cannot listen on 127.0.0.1:0: the system does not say why");
  EXPECT_THAT(Says("unix:/no/such/folder/s"), HasSubstr("is its folder there"));
}

}  // namespace
}  // namespace headrace
