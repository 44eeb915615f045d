#include "coordinator/weights_hash.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/safetensors.h"
#include "common/sha256.h"
#include "common/status.h"

namespace headrace {
namespace {

constexpr size_t kPieceBytes = size_t{4} << 20;

absl::Status HashSlice(const BlobStore& blobs, const v1::WeightsSlice& slice,
                       const std::atomic<bool>& stop, Sha256* hash) {
  HEADRACE_ASSIGN_OR_RETURN(const BlobStat stat, blobs.Stat(slice.sha256()));
  HEADRACE_ASSIGN_OR_RETURN(const std::string path, blobs.Path(slice.sha256()));
  if (stat.size_bytes != slice.size_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "blob ", slice.sha256(), " has ", stat.size_bytes, " bytes, not ", slice.size_bytes()));
  }
  HEADRACE_ASSIGN_OR_RETURN(const auto file, SafetensorsFile::Open(path));
  std::string_view payload = file->payload();
  while (!payload.empty()) {
    if (stop) return absl::CancelledError("stopped");
    const std::string_view piece = payload.substr(0, kPieceBytes);
    hash->Update(piece);
    payload.remove_prefix(piece.size());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> HashWeightsSlices(const BlobStore& blobs,
                                              const std::vector<v1::WeightsSlice>& slices,
                                              const std::atomic<bool>& stop) {
  Sha256 hash;
  for (const v1::WeightsSlice& slice : slices) {
    HEADRACE_RETURN_IF_ERROR(
        Annotate(HashSlice(blobs, slice, stop, &hash),
                 absl::StrCat("layers ", slice.first_layer(), " to ", slice.end_layer())));
  }
  return hash.Finish();
}

}  // namespace headrace
