#include "worker/transport/dial.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/flags.h"
#include "common/status.h"

namespace headrace {
namespace {

constexpr std::string_view kUnix = "unix:";
constexpr std::string_view kAbstract = "unix-abstract:";

absl::Status Failed(int error) {
  return absl::UnavailableError(absl::StrCat("cannot connect: ", strerror(error)));
}

// Holds a chunk and its header, so that a writer need not be woken in the middle of one; the system
// gives a Unix socket 208 KiB.
constexpr int kSendBufferBytes = (1 << 20) + (64 << 10);

// How long a dialling thread may not look whether it was cancelled.
constexpr int64_t kLookMs = 20;

// When to give up.
struct Patience {
  absl::Time deadline;
  const Cancellation* cancellation;

  bool cancelled() const { return cancellation != nullptr && cancellation->cancelled(); }
};

// Waits until a connect under way has come to its end.
absl::Status AwaitConnected(int fd, const Patience& patience) {
  pollfd wait = {.fd = fd, .events = POLLOUT, .revents = 0};
  for (;;) {
    if (patience.cancelled()) return absl::CancelledError("told to stop while connecting");
    const int64_t left_ms = absl::ToInt64Milliseconds(patience.deadline - absl::Now());
    if (left_ms <= 0) return absl::DeadlineExceededError("cannot connect: no answer");
    const int ready = poll(&wait, 1, static_cast<int>(std::min(left_ms, kLookMs)));
    if (ready < 0 && errno != EINTR) return Failed(errno);
    if (ready > 0) break;
  }
  int error = 0;
  socklen_t length = sizeof(error);
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
  return error == 0 ? absl::OkStatus() : Failed(error);
}

absl::StatusOr<Socket> Connect(const sockaddr* address, socklen_t length,
                               const Patience& patience) {
  Socket socket(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return Failed(errno);
  if (address->sa_family != AF_UNIX) {
    const int on = 1;
    setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  } else if (setsockopt(socket.fd(), SOL_SOCKET, SO_SNDBUFFORCE, &kSendBufferBytes,
                        sizeof(kSendBufferBytes)) != 0) {
    // As much as anybody may have. TCP finds its own size, and stops if told one.
    setsockopt(socket.fd(), SOL_SOCKET, SO_SNDBUF, &kSendBufferBytes, sizeof(kSendBufferBytes));
  }
  if (connect(socket.fd(), address, length) != 0) {
    if (errno != EINPROGRESS) return Failed(errno);
    HEADRACE_RETURN_IF_ERROR(AwaitConnected(socket.fd(), patience));
  }
  return socket;
}

absl::StatusOr<Socket> DialUnix(const std::string& path, const Patience& patience) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  return Connect(reinterpret_cast<const sockaddr*>(&address), sizeof(address), patience);
}

// An abstract name begins after a zero byte and is as long as the address says.
absl::StatusOr<Socket> DialAbstract(const std::string& name, const Patience& patience) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (name.empty() || name.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrCat("abstract socket of ", name.size(), " bytes, expected 1 to 107"));
  }
  name.copy(address.sun_path + 1, name.size());
  const size_t length = offsetof(sockaddr_un, sun_path) + 1 + name.size();
  return Connect(reinterpret_cast<const sockaddr*>(&address), static_cast<socklen_t>(length),
                 patience);
}

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// A lookup under way, shared because whoever asked may not wait for its end.
struct Lookup {
  Lookup(std::string host, std::string port) : host(std::move(host)), port(std::move(port)) {}

  const std::string host, port;
  absl::Mutex mu;
  bool done ABSL_GUARDED_BY(mu) = false;
  int error ABSL_GUARDED_BY(mu) = 0;
  AddressList found ABSL_GUARDED_BY(mu) = {nullptr, &freeaddrinfo};

  void Run(const Resolver& resolver, int flags) {
    addrinfo hints = {};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = flags;
    addrinfo* list = nullptr;
    const int result = resolver(host.c_str(), port.c_str(), &hints, &list);
    absl::MutexLock lock(&mu);
    error = result;
    found.reset(list);
    done = true;
  }
};

absl::StatusOr<AddressList> LookUp(const std::string& host, const std::string& port,
                                   const Patience& patience, Resolver resolver) {
  const auto numeric = std::make_shared<Lookup>(host, port);
  numeric->Run(getaddrinfo, AI_NUMERICHOST);
  {
    absl::MutexLock lock(&numeric->mu);
    if (numeric->error == 0) return std::move(numeric->found);
  }
  const auto lookup = std::make_shared<Lookup>(host, port);
  std::thread([lookup, resolver = std::move(resolver)] { lookup->Run(resolver, 0); }).detach();
  absl::MutexLock lock(&lookup->mu);
  const absl::Duration look = absl::Milliseconds(kLookMs);
  while (!lookup->mu.AwaitWithTimeout(absl::Condition(&lookup->done), look)) {
    if (patience.cancelled()) return absl::CancelledError("told to stop while connecting");
    if (absl::Now() >= patience.deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("cannot look up ", host, ": the resolver does not answer"));
    }
  }
  if (lookup->error != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot look up ", host, ": ", gai_strerror(lookup->error)));
  }
  return std::move(lookup->found);
}

absl::StatusOr<Socket> DialTcp(const std::string& host, const std::string& port,
                               const Patience& patience, Resolver resolver) {
  HEADRACE_ASSIGN_OR_RETURN(const AddressList found,
                            LookUp(host, port, patience, std::move(resolver)));
  absl::StatusOr<Socket> socket = absl::UnavailableError("cannot connect: no address");
  for (const addrinfo* at = found.get(); at != nullptr && !socket.ok(); at = at->ai_next) {
    socket = Connect(at->ai_addr, at->ai_addrlen, patience);
  }
  return socket;
}

}  // namespace

Socket::Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Socket::~Socket() {
  if (valid()) close(fd_);
}

int Socket::Duplicate() const { return fcntl(fd_, F_DUPFD_CLOEXEC, 0); }

void Socket::Shutdown() const { shutdown(fd_, SHUT_RDWR); }

absl::StatusOr<Socket> Dial(const std::string& address, absl::Time deadline,
                            const Cancellation* cancellation, Resolver resolver) {
  const Patience patience{deadline, cancellation};
  if (address.compare(0, kAbstract.size(), kAbstract) == 0) {
    return DialAbstract(address.substr(kAbstract.size()), patience);
  }
  HEADRACE_RETURN_IF_ERROR(CheckAddress(address));
  if (address.compare(0, kUnix.size(), kUnix) == 0) {
    return DialUnix(address.substr(kUnix.size()), patience);
  }
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (!host.empty() && host.front() == '[') host = host.substr(1, host.size() - 2);
  return DialTcp(host, address.substr(colon + 1), patience, std::move(resolver));
}

}  // namespace headrace
