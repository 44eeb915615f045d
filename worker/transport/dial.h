// Connects a socket. Links hold theirs themselves, rather than let gRPC connect, because nothing
// but closing the socket makes gRPC drop a write to a stopped peer, and with it the sender's
// memory.
#pragma once

#include <netdb.h>

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/cancellation.h"

namespace headrace {

// A socket. Closed when this goes. Thread-safe but for moves.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();

  int fd() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  // Another descriptor of the same socket; the caller owns it.
  int Duplicate() const;
  // Ends the connection both ways, for every descriptor of it; reads and writes under way fail.
  void Shutdown() const;

 private:
  int fd_ = -1;
};

// As getaddrinfo.
using Resolver =
    std::function<int(const char* host, const char* port, const addrinfo* hints, addrinfo** found)>;

// Connects to "host:port", "[v6]:port", "unix:/path" or "unix-abstract:name" and makes the socket
// non-blocking. Blocks, at most until `deadline`: a host name is looked up by a thread that is left
// behind if the resolver does not answer in time, and ends when it does.
//   INVALID_ARGUMENT   not an address
//   UNAVAILABLE        no such host, refused, no such socket: says what the system said
//   DEADLINE_EXCEEDED  no answer, from the host or from the resolver
//   CANCELLED          by `cancellation` (may be null: never)
absl::StatusOr<Socket> Dial(const std::string& address, absl::Time deadline,
                            const Cancellation* cancellation, Resolver resolver = getaddrinfo);

}  // namespace headrace
