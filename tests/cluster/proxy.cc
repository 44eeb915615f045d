#include "tests/cluster/proxy.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace headrace {
namespace {

constexpr size_t kMostPending = 1 << 20;

int ConnectUnix(const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  path.copy(name.sun_path, sizeof(name.sun_path) - 1);
  if (connect(fd, reinterpret_cast<sockaddr*>(&name), sizeof(name)) != 0) {
    close(fd);
    return -1;
  }
  fcntl(fd, F_SETFL, O_NONBLOCK);
  return fd;
}

// The end of a connection that the peer sees as a reset, not as an orderly close.
void CloseWithReset(int fd) {
  const linger at_once{1, 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  close(fd);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Proxy>> Proxy::Start(const std::string& target) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(name);
  if (bind(listener, reinterpret_cast<sockaddr*>(&name), size) != 0 || listen(listener, 64) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&name), &size) != 0) {
    return absl::ErrnoToStatus(errno, "proxy cannot listen");
  }
  int wake[2];
  if (pipe2(wake, O_CLOEXEC | O_NONBLOCK) != 0) return absl::ErrnoToStatus(errno, "pipe");
  return std::unique_ptr<Proxy>(new Proxy(target, absl::StrCat("127.0.0.1:", ntohs(name.sin_port)),
                                          listener, wake[0], wake[1]));
}

Proxy::Proxy(std::string target, std::string address, int listener, int wake_read, int wake_write)
    : target_(std::move(target)),
      address_(std::move(address)),
      listener_(listener),
      wake_read_(wake_read),
      wake_write_(wake_write),
      thread_([this] { Run(); }) {}

Proxy::~Proxy() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  if (write(wake_write_, "x", 1) == 1) thread_.join();
  close(wake_read_);
  close(wake_write_);
  close(listener_);
}

void Proxy::Set(Mode mode) {
  absl::MutexLock lock(&mu_);
  mode_ = mode;
  // A full pipe wakes as well.
  if (write(wake_write_, "x", 1) < 0) return;
}

Proxy::Mode Proxy::mode() {
  absl::MutexLock lock(&mu_);
  return mode_;
}

void Proxy::Run() {
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      if (stop_) break;
    }
    PollOnce(mode());
  }
  CloseAll();
}

void Proxy::PollOnce(Mode mode) {
  if (mode == Mode::kReset) CloseAll();
  std::vector<pollfd> waiting = {{wake_read_, POLLIN, 0}, {listener_, POLLIN, 0}};
  std::vector<std::pair<Flow*, bool>> flows;  // and whether it waits to read
  if (mode == Mode::kPass) {
    for (Connection& connection : connections_) {
      for (Flow* flow : {&connection.there, &connection.back}) {
        if (!flow->ended && flow->pending.size() < kMostPending) {
          waiting.push_back({flow->from, POLLIN, 0});
          flows.emplace_back(flow, true);
        }
        if (!flow->pending.empty()) {
          waiting.push_back({flow->to, POLLOUT, 0});
          flows.emplace_back(flow, false);
        }
      }
    }
  }
  if (poll(waiting.data(), waiting.size(), -1) <= 0) return;
  char drained[64];
  if (waiting[0].revents != 0 && read(wake_read_, drained, sizeof(drained)) < 0) return;
  if (this->mode() != mode) return;  // what arrived meanwhile is for the new mode
  for (size_t i = 0; i < flows.size(); ++i) {
    if (waiting[i + 2].revents == 0) continue;
    flows[i].second ? Read(flows[i].first) : Write(flows[i].first);
  }
  if (waiting[1].revents != 0) Accept();
  for (const Connection& connection : connections_) {
    if (Done(connection)) Close(connection);
  }
  connections_.remove_if(Done);
}

void Proxy::Accept() {
  const int client = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (client < 0) return;
  const int now = 1;
  setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &now, sizeof(now));
  const int server = mode() == Mode::kReset ? -1 : ConnectUnix(target_);
  if (server < 0) return CloseWithReset(client);
  Connection connection;
  connection.there = {client, server, "", false};
  connection.back = {server, client, "", false};
  connections_.push_back(std::move(connection));
}

void Proxy::Read(Flow* flow) {
  char buffer[1 << 16];
  const ssize_t n = read(flow->from, buffer, sizeof(buffer));
  if (n > 0) flow->pending.append(buffer, static_cast<size_t>(n));
  if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) flow->ended = true;
}

void Proxy::Write(Flow* flow) {
  const ssize_t n = send(flow->to, flow->pending.data(), flow->pending.size(), MSG_NOSIGNAL);
  if (n > 0) flow->pending.erase(0, static_cast<size_t>(n));
  if (n < 0 && errno != EAGAIN && errno != EINTR) {
    flow->ended = true;
    flow->pending.clear();
  }
}

// Neither side of a gRPC connection half-closes: one end is the end.
bool Proxy::Done(const Connection& connection) {
  const Flow& there = connection.there;
  const Flow& back = connection.back;
  return (there.ended && there.pending.empty()) || (back.ended && back.pending.empty());
}

void Proxy::Close(const Connection& connection) {
  CloseWithReset(connection.there.from);
  CloseWithReset(connection.there.to);
}

void Proxy::CloseAll() {
  for (const Connection& connection : connections_) Close(connection);
  connections_.clear();
}

}  // namespace headrace
