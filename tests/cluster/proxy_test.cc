#include "tests/cluster/proxy.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "absl/strings/numbers.h"
#include "tests/temp_dir.h"

namespace headrace {
namespace {

constexpr int kSoonMs = 10'000;
constexpr int kShortMs = 100;

// A unix socket whose one connection gets its own bytes back.
class Echo {
 public:
  explicit Echo(const std::string& path) : listener_(socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    path.copy(name.sun_path, sizeof(name.sun_path) - 1);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
    EXPECT_EQ(listen(listener_, 4), 0);
    thread_ = std::thread([this] {
      const int connection = accept(listener_, nullptr, nullptr);
      char buffer[4096];
      ssize_t n = 0;
      while ((n = read(connection, buffer, sizeof(buffer))) > 0) {
        if (send(connection, buffer, static_cast<size_t>(n), MSG_NOSIGNAL) < 0) break;
      }
      close(connection);
    });
  }
  ~Echo() {
    thread_.join();
    close(listener_);
  }

 private:
  const int listener_;
  std::thread thread_;
};

int Connect(const std::string& address) {
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.find(':') + 1), &port));
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(static_cast<uint16_t>(port));
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
  return fd;
}

// What arrives within the time: "" nothing, "end" or "reset" if the connection is over.
std::string Receive(int fd, int timeout_ms) {
  pollfd waiting{fd, POLLIN, 0};
  if (poll(&waiting, 1, timeout_ms) <= 0) return "";
  char buffer[64];
  const ssize_t n = read(fd, buffer, sizeof(buffer));
  if (n < 0) return "reset";
  return n == 0 ? "end" : std::string(buffer, static_cast<size_t>(n));
}

TEST(ProxyTest, PassesDropsAndResets) {
  TempDir dir;
  Echo echo(dir / "s");
  const auto proxy = Proxy::Start(dir / "s");
  ASSERT_TRUE(proxy.ok()) << proxy.status();
  const int fd = Connect((*proxy)->address());
  ASSERT_EQ(write(fd, "hello", 5), 5);
  EXPECT_EQ(Receive(fd, kSoonMs), "hello");

  (*proxy)->Set(Proxy::Mode::kDrop);
  ASSERT_EQ(write(fd, "lost", 4), 4);
  EXPECT_EQ(Receive(fd, kShortMs), "") << "something came through a cut cable";

  (*proxy)->Set(Proxy::Mode::kReset);
  EXPECT_EQ(Receive(fd, kSoonMs), "reset");
  const int refused = Connect((*proxy)->address());
  EXPECT_EQ(Receive(refused, kSoonMs), "reset");
  close(fd);
  close(refused);
}

}  // namespace
}  // namespace headrace
