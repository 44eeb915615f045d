// The address neighbours reach this worker at.
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

}  // namespace headrace
