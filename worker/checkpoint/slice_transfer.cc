#include "worker/checkpoint/slice_transfer.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/blob_transfer.h"
#include "common/channel.h"
#include "common/file.h"
#include "common/grpc_status.h"
#include "common/log.h"
#include "common/sha256.h"
#include "common/status.h"
#include "worker/checkpoint/incoming_slice.h"

namespace headrace {
namespace {

// Of a file being sent, what was sent is kept in memory up to this much.
constexpr int64_t kKeptSentBytes = 1 << 20;
constexpr absl::Duration kConnectHolderTime = absl::Seconds(2);
constexpr absl::Duration kLookEvery = absl::Milliseconds(100);
// A holder slower than 4 MiB/s is not one to wait for.
constexpr absl::Duration kHolderTime = absl::Seconds(10);
constexpr int64_t kHolderBytesPerSecond = int64_t{4} << 20;
// Sources that all failed, but not for good, are asked again for so long.
constexpr absl::Duration kAskAgainFor = absl::Seconds(2);
constexpr absl::Duration kAskAgainEvery = absl::Milliseconds(200);

bool Cancelled(const Cancellation* cancellation) {
  return cancellation != nullptr && cancellation->cancelled();
}

std::string NameSlice(const v1::WeightsSlice& slice, int64_t step) {
  return absl::StrCat("slice ", slice.sha256(), " (layers ", slice.first_layer(), " to ",
                      slice.end_layer() - 1, " after step ", step, ")");
}

class SliceFetcher {
 public:
  SliceFetcher(const v1::WeightsSlice& slice, SliceStore* store,
               v1::CoordinatorService::StubInterface* coordinator, absl::Time deadline,
               Cancellation* cancellation)
      : slice_(slice),
        store_(store),
        coordinator_(coordinator),
        deadline_(deadline),
        cancellation_(cancellation) {}

  absl::StatusOr<std::string> Fetch(const std::string& job_id, int64_t step);

 private:
  absl::StatusOr<std::string> FromThisDisk();
  // Asks every source once.
  absl::StatusOr<std::string> AskAll();
  absl::Status FromHolder(const std::string& address);
  absl::Status Connect(grpc::Channel* channel) const;
  absl::Status FromUri();
  absl::Status FromStore();
  absl::Status AppendFile(const MappedFile& file);
  absl::Status Append(std::string_view bytes);
  absl::Status Complete();
  // Notes what came of a source: true if the slice is here.
  bool Settle(const std::string& source, const absl::Status& status);
  absl::Status Failure() const;

  const v1::WeightsSlice& slice_;
  SliceStore* const store_;
  v1::CoordinatorService::StubInterface* const coordinator_;
  const absl::Time deadline_;
  Cancellation* const cancellation_;

  v1::HeldSlice held_;
  std::unique_ptr<IncomingSlice> incoming_;
  std::string path_;
  std::string here_;  // what is wrong with the copy on this disk; empty: there is none
  absl::Status own_;  // this disk cannot be written, or cancelled: no source helps
  // Of the last time all were asked:
  std::vector<std::string> said_;
  bool damaged_ = false, may_come_ = false;
  absl::Status decisive_;  // of the uri or the store, where it must be if nobody holds it
};

absl::StatusOr<std::string> SliceFetcher::Fetch(const std::string& job_id, int64_t step) {
  held_.set_job_id(job_id);
  held_.set_step(step);
  held_.set_sha256(slice_.sha256());
  absl::StatusOr<std::string> here = FromThisDisk();
  if (here.ok()) return here;
  if (!absl::IsNotFound(here.status())) {
    here_ = absl::StrCat("this disk: ", std::string(here.status().message()));
  }
  HEADRACE_ASSIGN_OR_RETURN(incoming_, IncomingSlice::Begin(store_, held_, slice_.size_bytes()));
  const absl::Time give_up = std::min(deadline_, absl::Now() + kAskAgainFor);
  while (true) {
    said_.clear();
    if (!here_.empty()) said_.push_back(here_);
    damaged_ = may_come_ = false;
    decisive_ = absl::NotFoundError("no source is known");
    absl::StatusOr<std::string> path = AskAll();
    if (path.ok() || !own_.ok() || !may_come_ || absl::Now() >= give_up) return path;
    if (cancellation_ == nullptr) {
      absl::SleepFor(kAskAgainEvery);
    } else {
      cancellation_->Pause(kAskAgainEvery);
    }
  }
}

absl::StatusOr<std::string> SliceFetcher::FromThisDisk() {
  HEADRACE_ASSIGN_OR_RETURN(std::string path, store_->Find(slice_.sha256()));
  HEADRACE_ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  Sha256 hash;
  const std::string_view data = file->data();
  for (size_t at = 0; at < data.size(); at += kKeptSentBytes) {
    if (Cancelled(cancellation_)) return absl::CancelledError("told to stop");
    hash.Update(data.substr(at, kKeptSentBytes));
    file->Release(static_cast<int64_t>(at), static_cast<int64_t>(at) + kKeptSentBytes);
  }
  if (hash.Finish() == slice_.sha256()) return path;
  LogWarning(absl::StrCat(path, " is damaged: its hash is another than its name says"));
  store_->Discard(slice_.sha256());
  return absl::DataLossError("damaged");
}

absl::StatusOr<std::string> SliceFetcher::AskAll() {
  for (const std::string& address : slice_.holder_addresses()) {
    if (Settle(absl::StrCat("the worker at ", address), FromHolder(address))) return path_;
    if (!own_.ok()) return own_;
  }
  if (!slice_.uri().empty() || coordinator_ != nullptr) {
    const bool shared = !slice_.uri().empty();
    decisive_ = shared ? FromUri() : FromStore();
    if (Settle(shared ? slice_.uri() : "the coordinator's store", decisive_)) return path_;
    if (!own_.ok()) return own_;
  }
  return Failure();
}

bool SliceFetcher::Settle(const std::string& source, const absl::Status& status) {
  if (status.ok()) return true;
  said_.push_back(absl::StrCat(source, ": ", std::string(status.message())));
  if (Cancelled(cancellation_)) own_ = absl::CancelledError("told to stop");
  if (absl::IsResourceExhausted(status)) own_.Update(status);
  if (absl::IsDataLoss(status)) {
    damaged_ = true;
    // Which part of what has come is wrong nobody knows.
    own_.Update(incoming_->Restart());
  } else if (!absl::IsNotFound(status)) {
    may_come_ = true;
  }
  return false;
}

absl::Status SliceFetcher::Failure() const {
  const std::string why = absl::StrJoin(said_, "; ");
  if (!absl::IsNotFound(decisive_) && !absl::IsDataLoss(decisive_)) {
    return {decisive_.code(), why};
  }
  if (damaged_) return absl::DataLossError(why);
  return absl::NotFoundError(why.empty() ? "no source is known" : why);
}

absl::Status SliceFetcher::Connect(grpc::Channel* channel) const {
  const absl::Time by = std::min(deadline_, absl::Now() + kConnectHolderTime);
  while (absl::Now() < by) {
    if (Cancelled(cancellation_)) return absl::CancelledError("told to stop");
    if (channel->WaitForConnected(absl::ToChronoTime(std::min(by, absl::Now() + kLookEvery)))) {
      return absl::OkStatus();
    }
    if (channel->GetState(true) == GRPC_CHANNEL_TRANSIENT_FAILURE) break;
  }
  return absl::UnavailableError("not to be reached");
}

absl::Status SliceFetcher::FromHolder(const std::string& address) {
  const std::shared_ptr<grpc::Channel> channel = MakeChannel(address, ChannelUse::kTensors);
  HEADRACE_RETURN_IF_ERROR(Connect(channel.get()));
  const auto stub = v1::StageService::NewStub(channel);
  grpc::ClientContext context;
  const Cancellation::Call call(cancellation_, &context);
  const absl::Duration time =
      kHolderTime + absl::Seconds(slice_.size_bytes() / kHolderBytesPerSecond);
  context.set_deadline(absl::ToChronoTime(std::min(deadline_, absl::Now() + time)));
  v1::GetSliceRequest request;
  request.set_sha256(slice_.sha256());
  request.set_offset(incoming_->received());
  const auto reader = stub->GetSlice(&context, request);
  v1::GetSliceResponse response;
  absl::Status written;
  while (written.ok() && reader->Read(&response)) written = Append(response.data());
  if (!written.ok()) context.TryCancel();
  const absl::Status status = FromGrpc(reader->Finish());
  HEADRACE_RETURN_IF_ERROR(written);
  if (absl::IsResourceExhausted(status) || absl::IsCancelled(status)) {
    return absl::UnavailableError(status.message());  // the holder's trouble, not ours
  }
  HEADRACE_RETURN_IF_ERROR(status);
  return Complete();
}

absl::Status SliceFetcher::FromUri() {
  if (!absl::StartsWith(slice_.uri(), "file:///")) {
    return absl::InvalidArgumentError("expected file:///…");
  }
  const std::string path(absl::StripPrefix(slice_.uri(), "file://"));
  HEADRACE_ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  return AppendFile(*file);
}

absl::Status SliceFetcher::FromStore() {
  const std::string path = store_->Temporary(held_.job_id(), held_.step());
  const absl::Cleanup remove = [&path] {
    std::remove(path.c_str());
    std::remove(absl::StrCat(path, ".part").c_str());
  };
  HEADRACE_RETURN_IF_ERROR(
      DownloadBlob(coordinator_, slice_.sha256(), path, deadline_, cancellation_));
  HEADRACE_RETURN_IF_ERROR(store_->Keep(path, held_));
  HEADRACE_ASSIGN_OR_RETURN(path_, store_->Find(slice_.sha256()));
  return absl::OkStatus();
}

absl::Status SliceFetcher::Append(std::string_view bytes) {
  absl::Status status = incoming_->Append(bytes);
  if (!absl::IsDataLoss(status)) own_.Update(status);
  return status;
}

absl::Status SliceFetcher::Complete() {
  absl::StatusOr<std::string> path = incoming_->Keep(SliceOrigin::kOwn);
  if (path.ok()) {
    path_ = *path;
  } else if (!absl::IsDataLoss(path.status())) {
    own_.Update(path.status());
  }
  return path.status();
}

absl::Status SliceFetcher::AppendFile(const MappedFile& file) {
  HEADRACE_RETURN_IF_ERROR(incoming_->Restart());
  const std::string_view data = file.data();
  for (size_t at = 0; at < data.size(); at += kKeptSentBytes) {
    if (Cancelled(cancellation_)) return absl::CancelledError("told to stop");
    HEADRACE_RETURN_IF_ERROR(Append(data.substr(at, kKeptSentBytes)));
    file.Release(static_cast<int64_t>(at), static_cast<int64_t>(at) + kKeptSentBytes);
  }
  return Complete();
}

}  // namespace

absl::Status SendSlice(v1::StageService::StubInterface* stub, const std::string& job_id,
                       int64_t generation, int64_t step, const std::string& sha256,
                       const std::string& path, absl::Time deadline, Cancellation* cancellation) {
  HEADRACE_ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  const std::string_view data = file->data();
  const int64_t size = static_cast<int64_t>(data.size());
  grpc::ClientContext context;
  const Cancellation::Call call(cancellation, &context);
  context.set_deadline(absl::ToChronoTime(deadline));
  v1::PutSliceResponse response;
  const auto writer = stub->PutSlice(&context, &response);
  v1::PutSliceRequest request;
  request.set_job_id(job_id);
  request.set_generation(generation);
  request.set_step(step);
  request.set_sha256(sha256);
  request.set_size_bytes(size);
  for (int64_t at = 0; at < size; at += kSliceChunkBytes) {
    const std::string_view chunk = data.substr(static_cast<size_t>(at), kSliceChunkBytes);
    request.set_data(chunk.data(), chunk.size());
    // A failed write's reason is in Finish.
    if (!writer->Write(request)) break;
    request.Clear();
    if ((at + kSliceChunkBytes) % kKeptSentBytes == 0) file->Release(0, at);
  }
  writer->WritesDone();
  return FromGrpc(writer->Finish());
}

absl::StatusOr<std::string> FetchSlice(const v1::WeightsSlice& slice, const std::string& job_id,
                                       int64_t step, SliceStore* store,
                                       v1::CoordinatorService::StubInterface* coordinator,
                                       absl::Time deadline, Cancellation* cancellation) {
  SliceFetcher fetcher(slice, store, coordinator, deadline, cancellation);
  absl::StatusOr<std::string> path = fetcher.Fetch(job_id, step);
  if (path.ok()) return path;
  return Annotate(path.status(), NameSlice(slice, step));
}

}  // namespace headrace
