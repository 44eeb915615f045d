#include "worker/checkpoint/state_slice.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/safetensors.h"
#include "common/sha256.h"
#include "common/status.h"

namespace headrace {
namespace {

constexpr char kStepKey[] = "step";
constexpr size_t kHashedAtOnce = size_t{256} << 10;
// Of what one call of write takes, so that a stage told to stop need not wait for more.
constexpr size_t kWrittenAtOnce = size_t{64} << 20;

std::string SlotName(const OptimizerSlot& slot, const std::string& parameter) {
  return absl::StrCat("optimizer.", slot.name, ".", parameter);
}

std::string TextOf(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::Status FileError(const char* doing, const std::string& path) {
  return absl::ErrnoToStatus(errno, absl::StrCat(doing, " ", path));
}

absl::Status WriteTo(int fd, const std::string& path, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), std::min(bytes.size(), kWrittenAtOnce));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileError("cannot write", path);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

// What a stage looks for: OwnState, and the owner's weight for each borrowed one.
std::vector<StateTensor> WantedState(const std::vector<Parameter>& parameters,
                                     const Optimizer& optimizer) {
  std::vector<StateTensor> wanted = OwnState(parameters, optimizer);
  for (const Parameter& parameter : parameters) {
    // Layer 0 owns a tie.
    if (parameter.borrowed) wanted.push_back({parameter.spec.owner, 0, parameter.weight});
  }
  return wanted;
}

// The files of a state, and where in them each tensor is.
class Files {
 public:
  absl::Status Open(const StateFile& file, int64_t step) {
    HEADRACE_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsFile> opened,
                              SafetensorsFile::Open(file.path));
    const auto at = opened->metadata().find(kStepKey);
    if (at == opened->metadata().end() || at->second != absl::StrCat(step)) {
      return absl::InvalidArgumentError(absl::StrCat(
          file.path, " is not the state after step ", step, ": its header says ",
          at == opened->metadata().end() ? "no step" : absl::StrCat("step ", at->second)));
    }
    for (const NamedTensor& tensor : opened->tensors()) {
      found_.try_emplace(tensor.name, opened.get(), &tensor);
    }
    files_.push_back(std::move(opened));
    return absl::OkStatus();
  }

  absl::Status Load(const StateTensor& wanted, ComputeDevice* device, bool* slice_is_bad) const {
    *slice_is_bad = true;
    const auto at = found_.find(wanted.name);
    if (at == found_.end()) {
      return absl::NotFoundError(absl::StrCat("the state has no tensor '", wanted.name, "'"));
    }
    const auto [file, tensor] = at->second;
    if (tensor->shape != wanted.tensor.shape) {
      return absl::InvalidArgumentError(absl::StrCat("tensor '", wanted.name, "' has shape ",
                                                     TextOf(tensor->shape), ", expected ",
                                                     TextOf(wanted.tensor.shape)));
    }
    *slice_is_bad = false;
    HEADRACE_RETURN_IF_ERROR(
        device->ToDevice(wanted.tensor.data, tensor->data, wanted.tensor.bytes(), wanted.name));
    file->Release(*tensor);  // or the state would be in memory twice
    return absl::OkStatus();
  }

 private:
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, std::pair<const SafetensorsFile*, const NamedTensor*>> found_;
};

// The slice that has a layer; empty: none of them.
std::string SliceOf(const std::vector<StateFile>& files, int64_t layer) {
  for (const StateFile& file : files) {
    const bool has = file.slice.first_layer() <= layer && layer < file.slice.end_layer();
    if (has) return file.slice.sha256();
  }
  return files.empty() ? "" : files.front().slice.sha256();
}

}  // namespace

std::vector<StateTensor> OwnState(const std::vector<Parameter>& parameters,
                                  const Optimizer& optimizer) {
  std::vector<StateTensor> state;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i];
    if (parameter.borrowed) continue;
    state.push_back({parameter.spec.name, parameter.layer, parameter.weight});
    for (const OptimizerSlot& slot : optimizer.slots()[i]) {
      state.push_back({SlotName(slot, parameter.spec.name), parameter.layer, slot.tensor});
    }
  }
  return state;
}

int64_t BytesOf(const std::vector<StateTensor>& state) {
  int64_t bytes = 0;
  for (const StateTensor& each : state) bytes += each.tensor.bytes();
  return bytes;
}

absl::StatusOr<int64_t> WriteState(const std::string& path, const std::vector<StateTensor>& state,
                                   int64_t step, ComputeDevice* device) {
  std::vector<NamedTensor> tensors;
  for (const StateTensor& each : state) tensors.push_back({each.name, each.tensor.shape, nullptr});
  const std::string header =
      SafetensorsHeader(tensors, {{"format", "pt"}, {kStepKey, absl::StrCat(step)}});
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return FileError("cannot create", path);
  absl::Cleanup remove = [&path] { unlink(path.c_str()); };
  absl::Status written = WriteTo(fd, path, header);
  for (const StateTensor& each : state) {
    if (!written.ok()) break;
    const absl::Status read =
        VisitBytes(device, each.tensor, each.name, [&](std::string_view bytes) {
          if (written.ok()) written = WriteTo(fd, path, bytes);
        });
    written.Update(read);
  }
  // Some file systems find out only now that there is no room.
  if (close(fd) != 0 && written.ok()) written = FileError("cannot write", path);
  HEADRACE_RETURN_IF_ERROR(written);
  std::move(remove).Cancel();
  return static_cast<int64_t>(header.size()) + BytesOf(state);
}

absl::StatusOr<std::string> HashFile(const std::string& path, const Cancellation* cancellation) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return FileError("cannot open", path);
  const absl::Cleanup closer = [fd] { close(fd); };
  Sha256 hash;
  std::string piece(kHashedAtOnce, '\0');
  for (;;) {
    if (cancellation != nullptr && cancellation->cancelled()) {
      return absl::CancelledError("told to stop");
    }
    const ssize_t n = read(fd, piece.data(), piece.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileError("cannot read", path);
    if (n == 0) return hash.Finish();
    hash.Update(std::string_view(piece).substr(0, static_cast<size_t>(n)));
  }
}

absl::Status LoadState(const std::vector<StateFile>& files, int64_t step,
                       std::vector<Parameter>* parameters, const Optimizer& optimizer,
                       ComputeDevice* device, std::string* bad_slice) {
  Files opened;
  for (const StateFile& file : files) {
    if (const absl::Status status = opened.Open(file, step); !status.ok()) {
      *bad_slice = file.slice.sha256();
      return status;
    }
  }
  for (const StateTensor& wanted : WantedState(*parameters, optimizer)) {
    bool slice_is_bad = false;
    if (const absl::Status status = opened.Load(wanted, device, &slice_is_bad); !status.ok()) {
      if (slice_is_bad) *bad_slice = SliceOf(files, wanted.layer);
      return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace headrace
