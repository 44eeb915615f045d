// Why a server cannot listen. gRPC says only that it did not.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace headrace {

// Tries to listen on `address` ("host:port" or "unix:/path"), which has just failed, and says in
// one sentence what stands against it. Blocks for the system's resolver. Never OK:
//   INVALID_ARGUMENT  the host is not known, or is not an address of this machine
//   UNAVAILABLE       in use, not permitted, or whatever else the system says
absl::Status ListenError(const std::string& address);

}  // namespace headrace
