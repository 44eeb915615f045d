#include "client/coordinator.h"

#include <stdlib.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/blob_transfer.h"
#include "common/cancellation.h"
#include "common/channel.h"
#include "common/file.h"
#include "common/flags.h"
#include "common/grpc_status.h"
#include "common/status.h"

namespace headrace {
namespace {

constexpr absl::Duration kFirstPoll = absl::Milliseconds(50);
constexpr absl::Duration kLastPoll = absl::Seconds(1);
constexpr absl::Duration kUploadTime = absl::Hours(24);

std::string Text(absl::string_view text) { return std::string(text); }

absl::Status Unreachable(const std::string& address, const std::string& why) {
  return absl::UnavailableError(
      absl::StrCat("no coordinator answers at ", address, " (", why,
                   "); check the address, or start one with `headrace up`"));
}

absl::StatusOr<std::string> Checked(const std::string& address, const std::string& source) {
  const absl::Status status = CheckAddress(address);
  if (status.ok()) return address;
  return absl::InvalidArgumentError(absl::StrCat(source, ": ", Text(status.message())));
}

// What a stream has told so far, so that the next one can go on from there.
struct Seen {
  std::string job;
  int64_t step = 0;
  int64_t event = 0;
  v1::Job last;
};

void Tell(const v1::WatchJobResponse& update, Seen* seen, JobObserver* observer) {
  switch (update.update_case()) {
    case v1::WatchJobResponse::kJob:
      seen->job = update.job().id();  // a name may mean another job by then
      seen->last = update.job();
      observer->OnJob(update.job());
      break;
    case v1::WatchJobResponse::kStep:
      seen->step = std::max(seen->step, update.step().step());
      observer->OnStep(update.step());
      break;
    case v1::WatchJobResponse::kEvent:
      seen->event = std::max(seen->event, update.event().id());
      observer->OnEvent(update.event());
      break;
    case v1::WatchJobResponse::kTensorHashes:
      observer->OnTensorHashes(update.tensor_hashes());
      break;
    case v1::WatchJobResponse::UPDATE_NOT_SET:
      break;
  }
}

// Streams that end without the job's end: the coordinator went, or is about to.
bool IsBroken(const grpc::Status& status) {
  return status.ok() || status.error_code() == grpc::StatusCode::UNAVAILABLE ||
         status.error_code() == grpc::StatusCode::CANCELLED;
}

}  // namespace

absl::StatusOr<std::string> FindCoordinator(const std::string& flag, const StateDir& state) {
  if (!flag.empty()) return Checked(flag, "--coordinator");
  const char* variable = getenv("HEADRACE_COORDINATOR");
  if (variable != nullptr && *variable != '\0') return Checked(variable, "HEADRACE_COORDINATOR");
  if (const auto content = ReadFile(state.address()); content.ok()) {
    return Checked(Text(absl::StripSuffix(*content, "\n")), state.address());
  }
  return absl::UnavailableError(
      "no coordinator known: give --coordinator HOST:PORT, set HEADRACE_COORDINATOR, or start one "
      "with `headrace up`");
}

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Connect(const std::string& address) {
  const auto channel = MakeChannel(address, ChannelUse::kControl);
  if (!channel->WaitForConnected(absl::ToChronoTime(absl::Now() + kConnectTime))) {
    return Unreachable(address, absl::StrCat("waited ", absl::FormatDuration(kConnectTime)));
  }
  return std::unique_ptr<Coordinator>(
      new Coordinator(address, v1::CoordinatorService::NewStub(channel)));
}

absl::Status Coordinator::Explain(const grpc::Status& status) const {
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return Unreachable(address_, absl::StrCat("no answer in ", absl::FormatDuration(kCallTime)));
  }
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    return Unreachable(address_, Text(FromGrpc(status).message()));
  }
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    return Unreachable(address_, "what answers there is something else");
  }
  return FromGrpc(status);
}

absl::StatusOr<v1::Job> Coordinator::GetJob(const std::string& job) {
  v1::GetJobRequest request;
  request.set_job(job);
  HEADRACE_ASSIGN_OR_RETURN(v1::GetJobResponse response,
                            Call(&v1::CoordinatorService::Stub::GetJob, request));
  return std::move(*response.mutable_job());
}

absl::StatusOr<v1::Job> Coordinator::GetJobAndSteps(const std::string& name) {
  HEADRACE_ASSIGN_OR_RETURN(v1::Job job, GetJob(name));
  v1::ListJobStepsRequest request;
  request.set_job(job.id());
  while (true) {
    HEADRACE_ASSIGN_OR_RETURN(v1::ListJobStepsResponse page,
                              Call(&v1::CoordinatorService::Stub::ListJobSteps, request));
    if (page.steps().empty()) return job;
    for (v1::StepResult& step : *page.mutable_steps()) {
      if (step.step() <= request.after_step()) {
        return absl::InternalError(absl::StrCat("the coordinator at ", address_,
                                                " lists the steps of job ", job.id(),
                                                " out of order"));
      }
      request.set_after_step(step.step());
      *job.add_steps() = std::move(step);
    }
  }
}

absl::Status Coordinator::CancelJob(const std::string& job) {
  v1::CancelJobRequest request;
  request.set_job(job);
  return Call(&v1::CoordinatorService::Stub::CancelJob, request).status();
}

absl::Status Coordinator::Upload(const std::string& path, const std::string& sha256,
                                 Interrupt* interrupt,
                                 const std::function<void(int64_t, int64_t)>& progress) {
  Cancellation cancellation;
  const Interrupt::Listener listener(interrupt, [&] { cancellation.Cancel(); });
  const absl::Status status =
      UploadBlob(stub_.get(), path, sha256, absl::Now() + kUploadTime, &cancellation, progress);
  if (interrupt->fired()) return absl::CancelledError("interrupted");
  return Annotate(status, absl::StrCat("coordinator ", address_));
}

absl::StatusOr<v1::Job> Coordinator::FollowJob(const std::string& job, const WaitOptions& options,
                                               JobObserver* observer) {
  Patience patience(address_, options);
  Seen seen;
  seen.job = job;
  while (true) {
    grpc::ClientContext context;
    if (options.deadline != absl::InfiniteFuture()) {
      context.set_deadline(absl::ToChronoTime(options.deadline));
    }
    v1::WatchJobRequest request;
    request.set_job(seen.job);
    request.set_after_step(seen.step);
    request.set_after_event(seen.event);
    const Interrupt::Listener listener(options.interrupt, [&] { context.TryCancel(); });
    const auto reader = stub_->WatchJob(&context, request);
    v1::WatchJobResponse update;
    while (reader->Read(&update)) {
      patience.Answered();
      Tell(update, &seen, observer);
    }
    const grpc::Status status = reader->Finish();
    if (HasEnded(seen.last.state())) return seen.last;
    if (options.interrupt->fired()) return absl::CancelledError("interrupted");
    if (absl::Now() >= options.deadline) {
      return absl::DeadlineExceededError(absl::StrCat("job ", seen.job, " has not ended in time"));
    }
    if (!IsBroken(status)) return FromGrpc(status);
    HEADRACE_RETURN_IF_ERROR(patience.Wait(
        Unreachable(address_, status.ok() ? "the stream ended" : status.error_message())));
  }
}

absl::Status Coordinator::WaitUntil(const std::string& what, const WaitOptions& options,
                                    const std::function<absl::StatusOr<bool>()>& done) {
  Patience patience(address_, options);
  absl::Duration pause = kFirstPoll;
  while (true) {
    const absl::StatusOr<bool> answer = done();
    if (!answer.ok() && !absl::IsUnavailable(answer.status())) return answer.status();
    if (answer.ok()) patience.Answered();
    if (answer.ok() && *answer) return absl::OkStatus();
    const absl::Time now = absl::Now();
    if (now >= options.deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat(what, " has not happened in time",
                       answer.ok() ? "" : absl::StrCat(": ", Text(answer.status().message()))));
    }
    if (!answer.ok()) {
      HEADRACE_RETURN_IF_ERROR(patience.Wait(answer.status()));
      continue;
    }
    if (options.interrupt->Sleep(std::min(pause, options.deadline - now))) {
      return absl::CancelledError("interrupted");
    }
    pause = std::min(2 * pause, kLastPoll);
  }
}

absl::StatusOr<v1::Job> Coordinator::GetJobAndSteps(const std::string& name,
                                                    const WaitOptions& options) {
  absl::StatusOr<v1::Job> job;
  HEADRACE_RETURN_IF_ERROR(
      WaitUntil(absl::StrCat("reading job ", name), options, [&]() -> absl::StatusOr<bool> {
        job = GetJobAndSteps(name);
        return job.ok() ? absl::StatusOr<bool>(true) : job.status();
      }));
  return job;
}

absl::Status Coordinator::Generate(const v1::GenerateRequest& request, absl::Time deadline,
                                   Interrupt* interrupt,
                                   const std::function<void(int64_t)>& on_token) {
  grpc::ClientContext context;
  if (deadline != absl::InfiniteFuture()) context.set_deadline(absl::ToChronoTime(deadline));
  const Interrupt::Listener listener(interrupt, [&] { context.TryCancel(); });
  const auto reader = stub_->Generate(&context, request);
  v1::GenerateResponse response;
  while (reader->Read(&response)) on_token(response.token());
  const grpc::Status status = reader->Finish();
  if (interrupt->fired()) return absl::CancelledError("interrupted");
  return status.error_code() == grpc::StatusCode::UNAVAILABLE ? Explain(status) : FromGrpc(status);
}

absl::Status OutcomeOf(const v1::Job& job) {
  if (job.state() == v1::JOB_STATE_DONE) return absl::OkStatus();
  const char* what = job.state() == v1::JOB_STATE_FAILED      ? " failed"
                     : job.state() == v1::JOB_STATE_CANCELLED ? " was cancelled"
                                                              : " has not ended";
  return absl::AbortedError(absl::StrCat("job ", job.id(), " (", job.name(), ")", what,
                                         job.message().empty() ? "" : ": ", job.message()));
}

}  // namespace headrace
