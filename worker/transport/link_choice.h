// Which ways between two devices an edge may try, before anything is tried. Pure.
//
//   pipeline.transport   both on CUDA devices of …       tried
//   auto                 one host                        cuda_ipc, then nccl if they are two
//   devices
//                        two hosts                       nccl
//   cuda_ipc             one host                        cuda_ipc
//   nccl                 (two devices)                   nccl
//   grpc, shm            —                               nothing
//
// What is not tried, or comes to nothing, leaves the edge to shared memory or frames, which pass
// through host memory; or, where the transport is forced, fails it.
#pragma once

#include <string>

#include "headrace/v1/job.pb.h"

namespace headrace {

// One end of an edge, as it says of itself.
struct LinkEnd {
  std::string host;    // HostInfo.id; empty: of no known host
  std::string device;  // where tensors lie, by UUID; empty: in host memory
};

struct DevicePaths {
  bool cuda_ipc = false, nccl = false;  // to be tried, in this order
  // What is not tried, and why: "cuda_ipc: the workers are on different hosts". Empty: nothing to
  // say, for no end has a device or the transport asks for none.
  std::string why_not;
};

DevicePaths ChooseDevicePaths(v1::Transport transport, const LinkEnd& sender,
                              const LinkEnd& receiver);

// Joins clauses: "a; b".
void AddReason(const std::string& reason, std::string* reasons);

// "auto", "grpc", "shm", "cuda_ipc", "nccl".
std::string TransportName(v1::Transport transport);
// Nothing else will do.
inline bool IsForced(v1::Transport transport) {
  return transport == v1::TRANSPORT_SHM || transport == v1::TRANSPORT_CUDA_IPC ||
         transport == v1::TRANSPORT_NCCL;
}
// Memory shared by processes may be used.
inline bool AllowsSharedMemory(v1::Transport transport) {
  return transport == v1::TRANSPORT_UNSPECIFIED || transport == v1::TRANSPORT_AUTO ||
         transport == v1::TRANSPORT_SHM;
}

}  // namespace headrace
