#include "worker/snapshot_places.h"

#include <memory>

#include "common/blob_transfer.h"
#include "common/channel.h"
#include "common/status.h"
#include "worker/checkpoint/shared_folder.h"
#include "worker/checkpoint/slice_transfer.h"
#include "worker/stage_fetch.h"

namespace headrace {

SnapshotPlaces PlacesOf(const StageJob& job, const WorkerContext& context,
                        Cancellation* cancellation) {
  SnapshotPlaces places;
  if (job.num_stages() > 1) {
    const v1::Peer& next = job.peers[static_cast<size_t>((job.stage() + 1) % job.num_stages())];
    places.neighbour = next.worker();
    // A connection of its own: tensors must not wait behind it.
    const auto channel = MakeChannel(next.address(), ChannelUse::kTensors);
    places.send = [&job, cancellation, stub = std::shared_ptr(v1::StageService::NewStub(channel))](
                      int64_t step, const v1::WeightsSlice& slice, const std::string& path) {
      return Annotate(
          SendSlice(stub.get(), job.job_id, job.generation, step, slice.sha256(), path,
                    TransferDeadline(slice.size_bytes()), cancellation),
          absl::StrCat(
              "worker ",
              job.peers[static_cast<size_t>((job.stage() + 1) % job.num_stages())].worker()));
    };
  }
  if (job.checkpoint.store().empty()) {
    places.store = [&job, coordinator = context.coordinator, cancellation](
                       int64_t, v1::WeightsSlice* slice, const std::string& path) {
      // The coordinator may be away, and back later.
      return UploadBlob(coordinator, path, slice->sha256(),
                        TransferDeadline(slice->size_bytes()) + job.coordinator_timeout,
                        cancellation);
    };
  } else {
    places.store = [&job, cancellation](int64_t step, v1::WeightsSlice* slice,
                                        const std::string& path) {
      return CopyToFolder(job.checkpoint.store(), job.job_id, step, path, slice, cancellation);
    };
  }
  return places;
}

}  // namespace headrace
