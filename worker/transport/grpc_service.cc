#include "worker/transport/grpc_service.h"

#include "worker/transport/grpc_incoming_stream.h"

namespace headrace {

GrpcStageService::GrpcStageService(StageDirectory* directory, absl::Duration hello_timeout) {
  const int method = v1::StreamTensorsRequest::descriptor()
                         ->file()
                         ->FindServiceByName("StageService")
                         ->FindMethodByName("StreamTensors")
                         ->index();
  // There is no public way to a synchronous raw handler; this is how the generated
  // WithStreamedUnaryMethod_ classes set theirs (gRPC 1.51).
  MarkMethodStreamed(
      method, new grpc::internal::TemplatedBidiStreamingHandler<RawByteStream, false>(
                  [directory, hello_timeout](grpc::ServerContext* context, RawByteStream* stream) {
                    return GrpcIncomingStream(directory, hello_timeout, context, stream).Run();
                  }));
}

}  // namespace headrace
