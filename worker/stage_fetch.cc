#include "worker/stage_fetch.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/blob_transfer.h"
#include "common/file.h"
#include "common/status.h"
#include "worker/checkpoint/slice_transfer.h"
#include "worker/checkpoint/state_slice.h"
#include "worker/checkpoint/weights_slice.h"

namespace headrace {

absl::Time TransferDeadline(int64_t bytes) {
  return absl::Now() + absl::Minutes(1) + absl::Seconds(bytes >> 20);
}

StageFetch::StageFetch(const StageJob* job, const WorkerContext* context, FlightRecorder* recorder,
                       Cancellation* cancellation)
    : job_(*job), context_(*context), recorder_(recorder), cancellation_(cancellation) {}

absl::Status StageFetch::Weights(StageEquipment* equipment) {
  if (job_.start_step == 0 && job_.weights.empty()) {
    recorder_->Record("drawing initial weights");
    equipment->model()->Initialise(job_.training.seed());
    return equipment->device()->Check();
  }
  HEADRACE_RETURN_IF_ERROR(job_.start_step > 0 ? State(equipment) : GivenWeights(equipment));
  equipment->model()->RoundWeights();
  return equipment->device()->Check();
}

bool StageFetch::Needs(const v1::WeightsSlice& slice) const {
  const int64_t first = job_.shape.layers.front().index, last = job_.shape.layers.back().index;
  const bool ours = slice.first_layer() <= last && slice.end_layer() > first;
  const bool tied = job_.shape.model.tied && job_.last() && slice.first_layer() == 0;
  return ours || tied;
}

absl::Status StageFetch::GivenWeights(StageEquipment* equipment) {
  std::vector<std::string> paths;
  for (const v1::WeightsSlice& slice : job_.weights) {
    if (!Needs(slice)) continue;
    HEADRACE_ASSIGN_OR_RETURN(std::string path, Download(slice.sha256(), slice.size_bytes()));
    paths.push_back(std::move(path));
  }
  recorder_->Record("loading weights");
  return LoadWeights(paths, &equipment->model()->parameters(), equipment->device());
}

absl::Status StageFetch::State(StageEquipment* equipment) {
  if (job_.simulated()) return absl::OkStatus();  // it has none
  if (context_.slices == nullptr) {
    return absl::FailedPreconditionError("this worker keeps no slices to go on from");
  }
  std::vector<StateFile> files;
  for (const v1::WeightsSlice& slice : job_.weights) {
    if (!Needs(slice)) continue;
    recorder_->Record(absl::StrCat("fetching slice ", slice.sha256()));
    absl::StatusOr<std::string> path =
        FetchSlice(slice, job_.job_id, job_.start_step, context_.slices, context_.coordinator,
                   TransferDeadline(slice.size_bytes()), cancellation_);
    if (absl::IsDataLoss(path.status()) || absl::IsNotFound(path.status())) {
      bad_slice_ = slice.sha256();
    }
    HEADRACE_RETURN_IF_ERROR(path.status());
    files.push_back({slice, *std::move(path)});
  }
  recorder_->Record(absl::StrCat("loading the state after step ", job_.start_step));
  return LoadState(files, job_.start_step, &equipment->model()->parameters(),
                   *equipment->optimizer(), equipment->device(), &bad_slice_);
}

absl::Status StageFetch::Data(StageEquipment* equipment) {
  if (job_.generates || (!job_.first() && !job_.last())) return absl::OkStatus();
  HEADRACE_ASSIGN_OR_RETURN(
      const std::string path,
      Download(job_.dataset.sha256(), job_.dataset.num_tokens() * job_.dataset.token_bytes()));
  return equipment->OpenData(path);
}

absl::StatusOr<std::string> StageFetch::Download(const std::string& sha256, int64_t bytes) {
  const std::string folder = absl::StrCat(context_.data_dir, "/blobs");
  HEADRACE_RETURN_IF_ERROR(MakeDirectories(folder));
  std::string path = absl::StrCat(folder, "/", sha256);
  recorder_->Record(absl::StrCat("fetching blob ", sha256));
  HEADRACE_RETURN_IF_ERROR(
      DownloadBlob(context_.coordinator, sha256, path, TransferDeadline(bytes), cancellation_));
  return path;
}

}  // namespace headrace
