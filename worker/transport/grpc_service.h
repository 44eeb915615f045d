// The receiving side of the gRPC links: a StageService whose StreamTensors is already there.
//
// The worker's service inherits from GrpcStageService and overrides the control calls only:
//
//   class StageServiceImpl final : public GrpcStageService {
//    public:
//     explicit StageServiceImpl(StageDirectory* directory) : GrpcStageService(directory) {}
//     grpc::Status AssignStage(grpc::ServerContext*, const v1::AssignStageRequest*,
//                              v1::AssignStageResponse*) override;
//     …
//   };
//
// and is registered with ServerBuilder like any other. A stage lets tensors in with
// StageDirectory::Enter before it reports that it is ready, and shuts the door with Leave.
//
// Each stream has two threads: the RPC's own, always inside Read, which copies frames into the
// inbox and nothing else; and one that returns credits. The stream is handled as raw bytes: the
// generated handler would copy every payload twice.
#pragma once

#include <grpcpp/grpcpp.h>

#include "absl/time/time.h"
#include "headrace/v1/worker.grpc.pb.h"
#include "worker/transport/link.h"

namespace headrace {

class GrpcStageService : public v1::StageService::Service {
 public:
  // `directory` must outlive the server. A stream that does not say HELLO within `hello_timeout` is
  // cancelled.
  explicit GrpcStageService(StageDirectory* directory,
                            absl::Duration hello_timeout = absl::Seconds(5));
};

}  // namespace headrace
