// The streaming RPCs of CoordinatorService. Each holds a thread, so a StreamGuard counts them, and
// ends one whose peer has stopped reading or writing.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/file.h"
#include "common/grpc_status.h"
#include "common/status.h"
#include "coordinator/coordinator_service.h"
#include "coordinator/job_view.h"
#include "plan/model.h"

namespace headrace {
namespace {

constexpr int64_t kChunkBytes = int64_t{1} << 20;
constexpr int64_t kPage = 500;  // rows of the store read at once
constexpr absl::Duration kWatchWriteTime = absl::Seconds(10);
constexpr absl::Duration kBlobTime = absl::Seconds(60);    // for one chunk
constexpr absl::Duration kPoll = absl::Milliseconds(100);  // between looks whether the client left
constexpr absl::Duration kTokenTime =
    absl::Minutes(10);  // for one token, waiting in the queue included
constexpr int64_t kMaxTokens = 1 << 16;
constexpr int64_t kMaxPromptTokens = 1 << 16;

// One WatchJob stream: catches up from the store, then follows the hub, and sends nothing twice.
class WatchStream {
 public:
  WatchStream(JobStore* jobs, const v1::WatchJobRequest& request, std::string job_id,
              StreamGuard::Stream* guard, grpc::ServerWriter<v1::WatchJobResponse>* writer)
      : jobs_(jobs),
        job_id_(std::move(job_id)),
        after_step_(request.after_step()),
        step_(request.after_step()),
        event_(request.after_event()),
        guard_(guard),
        writer_(writer) {}

  // Everything the store has beyond what was sent.
  absl::Status CatchUp() {
    while (true) {
      HEADRACE_ASSIGN_OR_RETURN(const bool more, CatchUpOnce());
      if (!more) return absl::OkStatus();
    }
  }

  // The job as it is now. True: it has ended, nothing more will come.
  absl::StatusOr<bool> SendJob() {
    HEADRACE_ASSIGN_OR_RETURN(StoredJob stored, jobs_->LoadJob(job_id_));
    // An ended job's last steps and events were committed before its state, or with it.
    if (HasEnded(stored.job.state())) HEADRACE_RETURN_IF_ERROR(CatchUp());
    v1::WatchJobResponse response;
    *response.mutable_job() = std::move(stored.job);
    TrimForWatcher(response.mutable_job());
    HEADRACE_RETURN_IF_ERROR(Send(response));
    return HasEnded(response.job().state());
  }

  // The job before its steps, so that a watcher knows what they are steps of.
  absl::Status SendHead() {
    HEADRACE_ASSIGN_OR_RETURN(StoredJob stored, jobs_->LoadJob(job_id_));
    v1::WatchJobResponse response;
    *response.mutable_job() = std::move(stored.job);
    TrimForWatcher(response.mutable_job());
    return Send(response);
  }

  // False: the store had already given this one, or it is before what the client asked for.
  bool IsNew(const JobUpdate& update) {
    const v1::WatchJobResponse& response = *update.response;
    if (response.has_step()) return Raise(&step_, response.step().step());
    if (response.has_event()) return Raise(&event_, response.event().id());
    if (response.has_tensor_hashes()) {
      return response.tensor_hashes().step() > after_step_ && Raise(&hashes_, update.hashes_id);
    }
    return true;
  }

  absl::Status Send(const v1::WatchJobResponse& response) {
    guard_->Waits(absl::Now() + kWatchWriteTime);
    const bool sent = writer_->Write(response);
    guard_->Goes();
    return sent ? absl::OkStatus() : absl::CancelledError("the watcher has gone");
  }

 private:
  static bool Raise(int64_t* last, int64_t value) {
    if (value <= *last) return false;
    *last = value;
    return true;
  }

  absl::StatusOr<bool> CatchUpOnce() {
    HEADRACE_ASSIGN_OR_RETURN(const std::vector<StoredHashes> hashes,
                              jobs_->LoadHashes(job_id_, after_step_, hashes_, kPage));
    HEADRACE_ASSIGN_OR_RETURN(const std::vector<v1::StepResult> steps,
                              jobs_->LoadSteps(job_id_, step_, kPage));
    HEADRACE_ASSIGN_OR_RETURN(const std::vector<v1::JobEvent> events,
                              jobs_->LoadEvents(job_id_, event_, kPage));
    v1::WatchJobResponse response;
    for (const StoredHashes& each : hashes) {
      *response.mutable_tensor_hashes() = each.hashes;
      HEADRACE_RETURN_IF_ERROR(Send(response));
      hashes_ = each.id;
    }
    for (const v1::StepResult& each : steps) {
      *response.mutable_step() = each;
      HEADRACE_RETURN_IF_ERROR(Send(response));
      step_ = each.step();
    }
    for (const v1::JobEvent& each : events) {
      *response.mutable_event() = each;
      HEADRACE_RETURN_IF_ERROR(Send(response));
      event_ = each.id();
    }
    return std::max({hashes.size(), steps.size(), events.size()}) == kPage;
  }

  JobStore* const jobs_;
  const std::string job_id_;
  const int64_t after_step_;
  int64_t step_;
  int64_t event_;
  int64_t hashes_ = 0;
  StreamGuard::Stream* const guard_;
  grpc::ServerWriter<v1::WatchJobResponse>* const writer_;
};

absl::Status CheckGenerate(const v1::GenerateRequest& request, const v1::Job& job) {
  if (job.plan().stage_size() > 0 && job.plan().stage(0).has_sim()) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", job.id(), " was simulated: it trained nothing to generate from"));
  }
  if (job.weights().empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", job.id(), " has no trained weights (", ShortName(job.state()), ")"));
  }
  HEADRACE_ASSIGN_OR_RETURN(const Model model, ResolveModel(job.spec().model()));
  if (request.prompt().empty() || request.prompt_size() > kMaxPromptTokens) {
    return absl::InvalidArgumentError(absl::StrCat("prompt: ", request.prompt_size(),
                                                   " tokens; expected 1 to ", kMaxPromptTokens));
  }
  for (const int64_t token : request.prompt()) {
    if (token < 0 || token >= model.vocabulary) {
      return absl::InvalidArgumentError(
          absl::StrCat("prompt: token ", token, "; expected 0 to ", model.vocabulary - 1));
    }
  }
  if (!std::isfinite(request.temperature()) || request.temperature() < 0) {
    return absl::InvalidArgumentError("temperature: expected 0 or more");
  }
  if (request.top_k() < 0) return absl::InvalidArgumentError("top_k: expected 0 or more");
  if (request.max_tokens() < 1 || request.max_tokens() > kMaxTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_tokens: ", request.max_tokens(), "; expected 1 to ", kMaxTokens));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CoordinatorServiceImpl::Watch(grpc::ServerContext* context,
                                           const v1::WatchJobRequest& request,
                                           grpc::ServerWriter<v1::WatchJobResponse>* writer) {
  JobStore& jobs = parts_.store->jobs();
  HEADRACE_ASSIGN_OR_RETURN(const std::string id, jobs.FindJob(request.job()));
  HEADRACE_ASSIGN_OR_RETURN(const auto guard, parts_.watches->Enter(context));
  WatchStream stream(&jobs, request, id, guard.get(), writer);
  HEADRACE_RETURN_IF_ERROR(stream.SendHead());
  // The long part first, so that the queue need not hold what comes meanwhile.
  HEADRACE_RETURN_IF_ERROR(stream.CatchUp());
  const std::shared_ptr<Watcher> watcher = parts_.hub->Subscribe(id);
  HEADRACE_RETURN_IF_ERROR(stream.CatchUp());
  HEADRACE_ASSIGN_OR_RETURN(bool ended, stream.SendJob());
  while (!ended) {
    absl::StatusOr<JobUpdate> update = watcher->Take(absl::Now() + kPoll);
    if (absl::IsDeadlineExceeded(update.status())) {
      if (context->IsCancelled()) return absl::CancelledError("the watcher has gone");
      continue;
    }
    if (!update.ok()) return update.status();
    if (!stream.IsNew(*update)) continue;
    HEADRACE_RETURN_IF_ERROR(stream.Send(*update->response));
    ended = update->response->has_job() && HasEnded(update->response->job().state());
  }
  return absl::OkStatus();
}

grpc::Status CoordinatorServiceImpl::WatchJob(grpc::ServerContext* context,
                                              const v1::WatchJobRequest* request,
                                              grpc::ServerWriter<v1::WatchJobResponse>* writer) {
  return Answer("WatchJob", Watch(context, *request, writer));
}

absl::Status CoordinatorServiceImpl::RunGenerate(grpc::ServerContext* context,
                                                 const v1::GenerateRequest& request,
                                                 grpc::ServerWriter<v1::GenerateResponse>* writer) {
  JobStore& jobs = parts_.store->jobs();
  HEADRACE_ASSIGN_OR_RETURN(const std::string id, jobs.FindJob(request.job()));
  HEADRACE_ASSIGN_OR_RETURN(const StoredJob stored, jobs.LoadJob(id));
  HEADRACE_RETURN_IF_ERROR(CheckGenerate(request, stored.job));
  HEADRACE_ASSIGN_OR_RETURN(const auto guard, parts_.generates->Enter(context));
  const std::shared_ptr<GenerateStream> stream = parts_.driver->Generate(request, stored.job);
  std::string why = "the client has gone";
  absl::Cleanup abandon = [&] { parts_.driver->Abandon(*stream, why); };
  absl::Time deadline = absl::Now() + kTokenTime;
  while (true) {
    absl::StatusOr<std::optional<int64_t>> token = stream->Take(absl::Now() + kPoll);
    if (absl::IsDeadlineExceeded(token.status())) {
      if (context->IsCancelled()) return absl::CancelledError(why);
      if (absl::Now() < deadline) continue;
      why = absl::StrCat("no token came for ", absl::FormatDuration(kTokenTime));
      return absl::DeadlineExceededError(why);
    }
    if (!token.ok() || !token->has_value()) {
      std::move(abandon).Cancel();  // it has ended by itself
      return token.status();
    }
    deadline = absl::Now() + kTokenTime;
    v1::GenerateResponse response;
    response.set_token(**token);
    guard->Waits(absl::Now() + kWatchWriteTime);
    const bool sent = writer->Write(response);
    guard->Goes();
    if (!sent) return absl::CancelledError(why);
  }
}

grpc::Status CoordinatorServiceImpl::Generate(grpc::ServerContext* context,
                                              const v1::GenerateRequest* request,
                                              grpc::ServerWriter<v1::GenerateResponse>* writer) {
  return Answer("Generate", RunGenerate(context, *request, writer));
}

grpc::Status CoordinatorServiceImpl::StatBlob(grpc::ServerContext*,
                                              const v1::StatBlobRequest* request,
                                              v1::StatBlobResponse* response) {
  const absl::StatusOr<BlobStat> stat = parts_.store->blobs().Stat(request->sha256());
  if (stat.ok()) {
    // Whoever asks may be about to use it.
    if (stat->complete) parts_.store->blobs().Touch(request->sha256()).IgnoreError();
    response->set_complete(stat->complete);
    response->set_size_bytes(stat->size_bytes);
  }
  return Answer("StatBlob", stat.status());
}

absl::Status CoordinatorServiceImpl::Upload(grpc::ServerContext* context,
                                            grpc::ServerReader<v1::UploadBlobRequest>* reader) {
  HEADRACE_ASSIGN_OR_RETURN(const auto guard, parts_.blobs->Enter(context));
  std::unique_ptr<BlobWriter> upload;
  v1::UploadBlobRequest request;
  while (true) {
    guard->Waits(absl::Now() + kBlobTime);
    const bool more = reader->Read(&request);
    guard->Goes();
    if (!more) break;
    if (static_cast<int64_t>(request.data().size()) > kChunkBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("a chunk of ", request.data().size(), " bytes; at most ", kChunkBytes));
    }
    if (upload == nullptr) {
      auto started = parts_.store->blobs().StartUpload(request.sha256(), request.size_bytes(),
                                                       request.offset());
      if (absl::IsAlreadyExists(started.status())) return absl::OkStatus();
      if (!started.ok()) return started.status();
      upload = *std::move(started);
    } else if (request.offset() != upload->received_bytes()) {
      return absl::OutOfRangeError(
          absl::StrCat("a chunk at ", request.offset(), "; expected ", upload->received_bytes()));
    }
    HEADRACE_RETURN_IF_ERROR(upload->Append(request.data()));
  }
  if (context->IsCancelled()) return absl::CancelledError("the upload was broken off");
  if (upload == nullptr) return absl::InvalidArgumentError("an upload without any message");
  return upload->Commit();
}

grpc::Status CoordinatorServiceImpl::UploadBlob(grpc::ServerContext* context,
                                                grpc::ServerReader<v1::UploadBlobRequest>* reader,
                                                v1::UploadBlobResponse*) {
  return Answer("UploadBlob", Upload(context, reader));
}

absl::Status CoordinatorServiceImpl::Download(
    grpc::ServerContext* context, const v1::DownloadBlobRequest& request,
    grpc::ServerWriter<v1::DownloadBlobResponse>* writer) {
  HEADRACE_ASSIGN_OR_RETURN(const std::string path, parts_.store->blobs().Path(request.sha256()));
  HEADRACE_ASSIGN_OR_RETURN(const auto file, MappedFile::Open(path));
  const int64_t size = static_cast<int64_t>(file->data().size());
  if (request.offset() < 0 || request.offset() > size) {
    return absl::OutOfRangeError(
        absl::StrCat("offset ", request.offset(), " of a blob of ", size, " bytes"));
  }
  HEADRACE_ASSIGN_OR_RETURN(const auto guard, parts_.blobs->Enter(context));
  std::string_view rest = file->data().substr(request.offset());
  v1::DownloadBlobResponse response;
  response.set_size_bytes(size);
  do {
    const std::string_view chunk = rest.substr(0, kChunkBytes);
    response.set_data(chunk.data(), chunk.size());
    guard->Waits(absl::Now() + kBlobTime);
    const bool sent = writer->Write(response);
    guard->Goes();
    if (!sent) return absl::CancelledError("the download was broken off");
    rest.remove_prefix(chunk.size());
    file->Release(0, size - static_cast<int64_t>(rest.size()));
  } while (!rest.empty());
  return absl::OkStatus();
}

grpc::Status CoordinatorServiceImpl::DownloadBlob(
    grpc::ServerContext* context, const v1::DownloadBlobRequest* request,
    grpc::ServerWriter<v1::DownloadBlobResponse>* writer) {
  return Answer("DownloadBlob", Download(context, *request, writer));
}

}  // namespace headrace
