#include "common/listen_error.h"

#include <errno.h>
#include <netdb.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace headrace {
namespace {

// 0: nothing stands against it.
int TryToListen(const addrinfo& at) {
  const int fd = socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  const absl::Cleanup close_fd = [fd] { close(fd); };
  const int yes = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (bind(fd, at.ai_addr, at.ai_addrlen) != 0 || listen(fd, 1) != 0) return errno;
  return 0;
}

absl::Status Explain(const std::string& address, int error) {
  const std::string what = absl::StrCat("cannot listen on ", address, ": ");
  switch (error) {
    case EADDRNOTAVAIL:
      return absl::InvalidArgumentError(
          absl::StrCat(what, "this machine has no such address; 0.0.0.0 means all it has"));
    case EADDRINUSE:
      return absl::UnavailableError(absl::StrCat(what, "the address is in use"));
    case EACCES:
      return absl::UnavailableError(
          absl::StrCat(what, "not permitted; ports below 1024 may need a privilege"));
    case 0:
      return absl::UnavailableError(absl::StrCat(what, "the system does not say why"));
    default:
      return absl::UnavailableError(absl::StrCat(what, strerror(error)));
  }
}

}  // namespace

absl::Status ListenError(const std::string& address) {
  // A socket's path was examined and locked before; what is left is the folder.
  if (absl::StartsWith(address, "unix:")) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address, ": is its folder there, and writable?"));
  }
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.empty() ? nullptr : host.c_str(),
                                address.substr(colon + 1).c_str(), &hints, &found);
  if (error != 0) {
    return absl::InvalidArgumentError(absl::StrCat("cannot listen on ", address, ": no host '",
                                                   host, "' is known (", gai_strerror(error), ")"));
  }
  const absl::Cleanup free_found = [found] { freeaddrinfo(found); };
  int why = 0;
  for (const addrinfo* at = found; at != nullptr && why == 0; at = at->ai_next) {
    why = TryToListen(*at);
  }
  return Explain(address, why);
}

}  // namespace headrace
