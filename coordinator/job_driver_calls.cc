// What RPC threads ask of the driver: each puts an event into the mailbox and waits for its answer.
#include <utility>

#include "coordinator/job_driver.h"

namespace headrace {

int64_t JobDriver::NewCaller() {
  absl::MutexLock lock(&mu_);
  callers_[++last_request_] = Caller();
  return last_request_;
}

absl::StatusOr<JobDriver::Answer> JobDriver::Await(int64_t request, absl::Time deadline) {
  absl::MutexLock lock(&mu_);
  Caller& caller = callers_[request];
  const auto done = [&] { return caller.done || stopping_; };
  const bool answered = mu_.AwaitWithDeadline(absl::Condition(&done), deadline);
  const Caller result = caller;
  callers_.erase(request);
  if (!answered) {
    return absl::DeadlineExceededError("the coordinator could not save the request in time");
  }
  if (!result.done) return ShuttingDown();
  if (!result.status.ok()) return result.status;
  return result.answer;
}

template <typename Make>
absl::StatusOr<JobDriver::Answer> JobDriver::Ask(Make make, absl::Time deadline) {
  const int64_t number = NewCaller();
  PostInternal(make(number));
  return Await(number, deadline);
}

absl::StatusOr<JobDriver::Answer> JobDriver::Submit(const v1::SubmitJobRequest& request,
                                                    const std::string& from_job,
                                                    absl::Time deadline) {
  JobSubmitted submitted{0, request.spec(), request.dataset(), request.options()};
  if (!from_job.empty()) {
    submitted.from.emplace();
    submitted.from->job.set_id(from_job);  // the rest is read on the driver's thread
    submitted.from_step = request.from_step();
  }
  return Ask(
      [&](int64_t number) {
        submitted.request = number;
        return std::move(submitted);
      },
      deadline);
}

absl::Status JobDriver::Cancel(const std::string& job_id, absl::Time deadline) {
  return Ask([&](int64_t number) { return CancelRequested{number, job_id}; }, deadline).status();
}

absl::StatusOr<JobDriver::Answer> JobDriver::Checkpoint(const std::string& job_id,
                                                        absl::Time deadline) {
  return Ask([&](int64_t number) { return CheckpointRequested{number, job_id}; }, deadline);
}

absl::StatusOr<JobDriver::Answer> JobDriver::Pause(const std::string& job_id, absl::Time deadline) {
  return Ask([&](int64_t number) { return PauseRequested{number, job_id}; }, deadline);
}

absl::StatusOr<JobDriver::Answer> JobDriver::Resume(const std::string& job_id,
                                                    absl::Time deadline) {
  return Ask([&](int64_t number) { return ResumeRequested{number, job_id, {}}; }, deadline);
}

absl::StatusOr<JobDriver::Answer> JobDriver::Cordon(const v1::CordonWorkerRequest& request,
                                                    absl::Time deadline) {
  return Ask(
      [&](int64_t number) {
        return CordonRequested{number, request.worker(), request.cordoned(), request.drain()};
      },
      deadline);
}

std::shared_ptr<GenerateStream> JobDriver::Generate(const v1::GenerateRequest& request,
                                                    const v1::Job& trained) {
  std::shared_ptr<GenerateStream> stream;
  {
    absl::MutexLock lock(&mu_);
    stream = std::make_shared<GenerateStream>(++last_request_);
    generates_[stream->request()] = stream;
    if (stopping_) stream->End(ShuttingDown());
  }
  PostInternal(GenerateSubmitted{stream->request(), request, trained});
  return stream;
}

void JobDriver::Abandon(const GenerateStream& stream, const std::string& reason) {
  {
    absl::MutexLock lock(&mu_);
    generates_.erase(stream.request());
  }
  PostInternal(GenerateAbandoned{stream.request(), reason});
}

}  // namespace headrace
