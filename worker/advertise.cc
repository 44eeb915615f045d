#include "worker/advertise.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/status.h"

namespace headrace {
namespace {

struct HostPort {
  std::string host, port;
};

// Both forms CheckAddress lets through: "host:port" and "[v6]:port".
HostPort Split(const std::string& address) {
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  return {host, address.substr(colon + 1)};
}

std::string Join(const std::string& host, int port) {
  if (absl::StrContains(host, ":")) return absl::StrCat("[", host, "]:", port);
  return absl::StrCat(host, ":", port);
}

bool IsWildcard(const std::string& host) {
  return host.empty() || host == "0.0.0.0" || host == "::" || host == "*";
}

// Connecting a datagram socket sends nothing, but picks a route and thereby a local address.
absl::StatusOr<std::string> LocalHostTowards(const std::string& coordinator) {
  const HostPort target = Split(coordinator);
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(target.host.c_str(), target.port.c_str(), &hints, &found);
  if (error != 0) {
    return absl::InvalidArgumentError(absl::StrCat("cannot find the coordinator's host '",
                                                   target.host, "' (", gai_strerror(error),
                                                   "); say --advertise"));
  }
  const absl::Cleanup free_found = [found] { freeaddrinfo(found); };
  for (const addrinfo* to = found; to != nullptr; to = to->ai_next) {
    const int fd = socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    const absl::Cleanup close_fd = [fd] { close(fd); };
    sockaddr_storage local{};
    socklen_t size = sizeof(local);
    char host[NI_MAXHOST];
    if (connect(fd, to->ai_addr, to->ai_addrlen) == 0 &&
        getsockname(fd, reinterpret_cast<sockaddr*>(&local), &size) == 0 &&
        getnameinfo(reinterpret_cast<sockaddr*>(&local), size, host, sizeof(host), nullptr, 0,
                    NI_NUMERICHOST) == 0) {
      return std::string(host);
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("there is no route to the coordinator at ", coordinator, "; say --advertise"));
}

}  // namespace

absl::StatusOr<std::string> AdvertisedAddress(const std::string& advertise,
                                              const std::string& listen, int port,
                                              const std::string& coordinator) {
  if (!advertise.empty()) return advertise;
  if (absl::StartsWith(listen, "unix:")) return listen;
  const std::string host = Split(listen).host;
  if (!IsWildcard(host)) return Join(host, port);
  // A coordinator on a Unix socket is on this host, and so are all of its workers.
  if (absl::StartsWith(coordinator, "unix:")) return Join("127.0.0.1", port);
  HEADRACE_ASSIGN_OR_RETURN(const std::string local, LocalHostTowards(coordinator));
  return Join(local, port);
}

std::string HostId() {
  absl::StatusOr<std::string> boot = ReadFile("/proc/sys/kernel/random/boot_id");
  if (!boot.ok()) return "";
  std::string id(absl::StripAsciiWhitespace(*boot));
  for (const char* name : {"/proc/self/ns/pid", "/proc/self/ns/net"}) {
    char target[64];
    const ssize_t size = readlink(name, target, sizeof(target));
    if (size <= 0) return "";
    absl::StrAppend(&id, " ", std::string(target, static_cast<size_t>(size)));
  }
  return id;
}

std::string LocalAddress(const std::string& instance) {
  return absl::StrCat("unix-abstract:headrace-worker-", instance);
}

}  // namespace headrace
