// Where neighbours reach this worker, and which of them are on its host.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace headrace {

// `advertise` if given; else `listen` with the bound `port` if it names an interface; else (it
// listens on all of them) the local address by which `coordinator` is reached, which neighbours of
// the coordinator can most likely reach too.
//   INVALID_ARGUMENT  the coordinator's host is not known; say --advertise
absl::StatusOr<std::string> AdvertisedAddress(const std::string& advertise,
                                              const std::string& listen, int port,
                                              const std::string& coordinator);

// HostInfo.id: boot, process namespace and network namespace of this process. Processes for which
// it is equal can open each other's memory through /proc (as one user), and reach each other's
// abstract sockets; containers and network namespaces are hosts of their own. Empty where /proc
// does not say.
std::string HostId();
// An abstract Unix socket's address for a worker of this instance: no file, and gone with the
// process.
std::string LocalAddress(const std::string& instance);

}  // namespace headrace
