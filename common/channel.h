// gRPC channels and servers with the arguments that were found to work (docs/performance.md):
// retries off, keepalive both ways, quick reconnects, no shared ports.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace headrace {

enum class ChannelUse {
  kControl,  // requests
  kTensors,  // a connection of its own, large messages
  // From a worker to its coordinator, whose answers to heartbeats tell whether it is there: pinged
  // every 10 s instead of every second, which would cost it more than the heartbeats.
  kHeartbeats,
  kBlobs,  // the same on a connection of its own
};
enum class ListenUse {
  kPeers,
  kCoordinator,  // pings every 10 s too
};
// For channels made in another way, such as over a socket connected before.
grpc::ChannelArguments MakeChannelArguments(ChannelUse use);
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, ChannelUse use);

// Adds `address` ("host:port", port 0 for any; "unix:/path") and the server-side arguments. A unix
// socket's path is locked, since a second server would steal it in silence. `*port` is the bound
// port after BuildAndStart.
absl::Status AddListener(grpc::ServerBuilder* builder, const std::string& address, int* port,
                         ListenUse use = ListenUse::kPeers);

}  // namespace headrace
