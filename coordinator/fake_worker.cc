#include "coordinator/fake_worker.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/blob_transfer.h"
#include "common/channel.h"
#include "common/file.h"
#include "common/grpc_status.h"
#include "common/safetensors.h"
#include "common/sha256.h"

namespace headrace {
namespace {

constexpr absl::Duration kBeat = absl::Milliseconds(100);

std::atomic<int> instances = 0;

void SetDeadline(grpc::ClientContext* context) {
  context->set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(10)));
}

}  // namespace

FakeWorker::FakeWorker(const std::string& coordinator, const std::string& name, Behaviour behaviour)
    : name_(name),
      behaviour_(std::move(behaviour)),
      instance_(absl::StrCat(name, "#", ++instances)) {
  const auto channel = MakeChannel(coordinator, ChannelUse::kControl);
  blobs_ = v1::CoordinatorService::NewStub(channel);
  registry_ = v1::WorkerRegistryService::NewStub(channel);
  grpc::ServerBuilder builder;
  int port = 0;
  EXPECT_TRUE(AddListener(&builder, "127.0.0.1:0", &port).ok());
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();

  v1::WorkerInfo* info = registration_.mutable_worker();
  info->set_name(name);
  info->set_instance(instance_);
  info->set_address(absl::StrCat("127.0.0.1:", port));
  info->set_device("cpu");
  info->set_memory_limit_bytes(int64_t{8} << 30);
  info->set_threads(1);
  info->set_flops_per_second(1e11);
  info->set_profiles_layers(!behaviour_.measures_on.empty());
  info->set_device_name(behaviour_.measures_on);
  const absl::Status status = Register();
  EXPECT_TRUE(status.ok()) << status;
  beater_ = std::thread([this] { Beat(); });
  worker_ = std::thread([this] { Work(); });
}

absl::Status FakeWorker::Register() {
  v1::RegisterWorkerRequest request = registration_;
  {
    absl::MutexLock lock(&mu_);
    if (!assignment_.job_id().empty()) {
      v1::StageStanding* standing = request.mutable_standing();
      standing->set_job_id(assignment_.job_id());
      standing->set_generation(assignment_.generation());
      standing->set_stage(assignment_.stage());
      standing->set_step(reported_step_);
    }
  }
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::RegisterWorkerResponse response;
  return FromGrpc(registry_->RegisterWorker(&context, request, &response));
}

FakeWorker::~FakeWorker() {
  Die();
  beater_.join();
  worker_.join();
}

void FakeWorker::Die() {
  dead_ = true;
  work_.Close();
  {
    absl::MutexLock lock(&mu_);
    closed_ = true;
  }
  server_->Shutdown(absl::ToChronoTime(absl::Now()));
}

bool FakeWorker::AwaitStopped(int times, absl::Time deadline) {
  absl::MutexLock lock(&mu_);
  const auto seen = [&] { return stopped_ >= times; };
  return mu_.AwaitWithDeadline(absl::Condition(&seen), deadline);
}

bool FakeWorker::AwaitProfiled(absl::Time deadline) {
  absl::MutexLock lock(&mu_);
  const auto seen = [&] { return profiled_ > 0; };
  return mu_.AwaitWithDeadline(absl::Condition(&seen), deadline);
}

grpc::Status FakeWorker::ProfileLayers(grpc::ServerContext* context,
                                       const v1::ProfileLayersRequest* request,
                                       v1::ProfileLayersResponse* response) {
  {
    absl::MutexLock lock(&mu_);
    ++profiled_;
  }
  if (!behaviour_.profile_failure.empty()) {
    return {grpc::StatusCode::INTERNAL, behaviour_.profile_failure};
  }
  absl::MutexLock lock(&mu_);
  while (behaviour_.profile_stalls && !context->IsCancelled() && !closed_) {
    mu_.AwaitWithTimeout(absl::Condition(&closed_), absl::Milliseconds(10));
  }
  for (const int64_t layer : request->layers()) {
    v1::LayerProfile* profile = response->add_profiles();
    profile->set_layer(layer);
    const double forward_s = layer == 1 ? 0.001 : 0.005;
    profile->mutable_seconds()->set_forward_s(forward_s);
    profile->mutable_seconds()->set_backward_s(2 * forward_s);
  }
  return grpc::Status::OK;
}

void FakeWorker::Beat() {
  while (!dead_) {
    v1::HeartbeatRequest request;
    request.set_worker(name_);
    request.set_instance(instance_);
    {
      absl::MutexLock lock(&mu_);
      request.set_number(++last_beat_);
      request.set_job_id(assignment_.job_id());
      request.set_generation(assignment_.generation());
    }
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::HeartbeatResponse response;
    const grpc::Status status = registry_->Heartbeat(&context, request, &response);
    if (status.error_code() == grpc::StatusCode::NOT_FOUND) Register().IgnoreError();
    absl::MutexLock lock(&mu_);
    if (!response.drop().empty()) dropped_.assign(response.drop().begin(), response.drop().end());
    mu_.AwaitWithTimeout(absl::Condition(&closed_), kBeat);
  }
}

void FakeWorker::Work() {
  while (true) {
    auto next = work_.Pop(absl::InfiniteFuture());
    if (!next.ok()) return;
    (*next)();
  }
}

absl::Status FakeWorker::Report(v1::StageEvent event) {
  if (dead_) return absl::CancelledError("dead");
  v1::ReportEventsRequest request;
  request.set_worker(name_);
  request.set_instance(instance_);
  event.set_sequence(++sequence_);
  *request.add_events() = std::move(event);
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::ReportEventsResponse response;
  return FromGrpc(registry_->ReportEvents(&context, request, &response));
}

v1::StageEvent FakeWorker::EventOf(const v1::StageAssignment& assignment) {
  v1::StageEvent event;
  event.set_job_id(assignment.job_id());
  event.set_generation(assignment.generation());
  event.set_stage(assignment.stage());
  return event;
}

v1::StageAssignment FakeWorker::assignment() {
  absl::MutexLock lock(&mu_);
  return last_assignment_;
}

std::vector<v1::SliceLimit> FakeWorker::dropped() {
  absl::MutexLock lock(&mu_);
  return dropped_;
}

grpc::Status FakeWorker::AssignStage(grpc::ServerContext*, const v1::AssignStageRequest* request,
                                     v1::AssignStageResponse*) {
  absl::MutexLock lock(&mu_);
  if (!assignment_.job_id().empty()) {
    return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "busy with another job");
  }
  ++assigned_;
  assignment_ = request->assignment();
  last_assignment_ = assignment_;
  control_.Clear();
  const v1::StageAssignment assignment = assignment_;
  work_
      .Push(
          [this, assignment] {
            v1::StageEvent event = EventOf(assignment);
            event.mutable_ready();
            Report(event).IgnoreError();
          },
          1, absl::InfinitePast())
      .IgnoreError();
  return grpc::Status::OK;
}

grpc::Status FakeWorker::StartStage(grpc::ServerContext*, const v1::StartStageRequest*,
                                    v1::StartStageResponse*) {
  absl::MutexLock lock(&mu_);
  const v1::StageAssignment assignment = assignment_;
  work_
      .Push([this,
             assignment] { assignment.has_generate() ? Generate(assignment) : Train(assignment); },
            1, absl::InfinitePast())
      .IgnoreError();
  return grpc::Status::OK;
}

grpc::Status FakeWorker::StopStage(grpc::ServerContext*, const v1::StopStageRequest* request,
                                   v1::StopStageResponse* response) {
  absl::MutexLock lock(&mu_);
  ++stopped_;
  response->mutable_flight_record()->add_entries(absl::StrCat(name_, " was stopped"));
  response->set_last_heartbeat(last_beat_);
  const v1::StageAssignment assignment = assignment_;
  if (request->job_id() == assignment_.job_id()) assignment_.Clear();
  if (behaviour_.delayed_confession.empty()) return grpc::Status::OK;
  work_
      .Push(
          [this, assignment] {
            v1::StageEvent event = EventOf(assignment);
            event.mutable_failed()->set_reason(behaviour_.delayed_confession);
            Report(event).IgnoreError();
          },
          1, absl::InfinitePast())
      .IgnoreError();
  return grpc::Status::OK;
}

grpc::Status FakeWorker::ControlStage(grpc::ServerContext*, const v1::ControlStageRequest* request,
                                      v1::ControlStageResponse*) {
  absl::MutexLock lock(&mu_);
  if (request->job_id() != assignment_.job_id() ||
      request->generation() != assignment_.generation()) {
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "no such stage here");
  }
  control_ = *request;
  ++controlled_;
  return grpc::Status::OK;
}

bool FakeWorker::PassStepTime(const v1::StageAssignment& assignment) {
  absl::MutexLock lock(&mu_);
  const auto stopped = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return closed_ || assignment_.job_id() != assignment.job_id() ||
           assignment_.generation() != assignment.generation();
  };
  if (behaviour_.step_time == absl::ZeroDuration()) return true;
  return !mu_.AwaitWithTimeout(absl::Condition(&stopped), behaviour_.step_time);
}

void FakeWorker::Train(const v1::StageAssignment& assignment) {
  v1::StageEvent event = EventOf(assignment);
  const bool last = assignment.stage() + 1 == assignment.plan().stages();
  const int64_t steps = assignment.spec().training().steps();
  for (int64_t step = assignment.start_step() + 1; step <= steps; ++step) {
    if (!PassStepTime(assignment)) return;
    if (step == behaviour_.nan_at_step) {
      Finish(assignment, step - 1, absl::StrCat("step ", step, ": the loss is NaN"));
      return;
    }
    if (step == behaviour_.fail_at_step) {
      event.mutable_failed()->set_reason(behaviour_.failure);
      event.mutable_failed()->set_blamed_worker(behaviour_.blamed);
      event.mutable_failed()->mutable_flight_record()->add_entries("what failed");
      Report(event).IgnoreError();
      return;
    }
    v1::StageStep* report = event.mutable_step();
    report->Clear();
    report->set_step(step);
    report->mutable_seconds()->set_wall(1);
    report->mutable_seconds()->set_compute(0.75);
    if (last) report->set_loss(5.0 / static_cast<double>(step));
    if (assignment.options().hash_tensors()) {
      report->mutable_tensor_hashes()->add_names("weight w");
      report->mutable_tensor_hashes()->add_hashes(42);
    }
    if (Report(event).ok()) reported_step_ = step;
    if (Control(assignment, step) || step == behaviour_.hold_after_step) return;
  }
  Finish(assignment, steps, "");
}

bool FakeWorker::Control(const v1::StageAssignment& assignment, int64_t step) {
  v1::ControlStageRequest control;
  {
    absl::MutexLock lock(&mu_);
    control.Swap(&control_);
  }
  const bool due = behaviour_.checkpoint_every > 0 && step % behaviour_.checkpoint_every == 0;
  if (due || control.checkpoint() || control.leave()) Snapshot(assignment, step);
  if (!control.leave()) return false;
  v1::StageEvent event = EventOf(assignment);
  event.mutable_left()->set_step(step);
  Report(event).IgnoreError();
  return true;
}

void FakeWorker::Snapshot(const v1::StageAssignment& assignment, int64_t step) {
  v1::StageEvent event = EventOf(assignment);
  v1::StageSnapshot* snapshot = event.mutable_snapshot();
  snapshot->set_step(step);
  *snapshot->mutable_slice() = MakeSlice(assignment, step, behaviour_.folder);
  snapshot->set_in_store(true);
  Report(event).IgnoreError();
}

v1::WeightsSlice FakeWorker::MakeSlice(const v1::StageAssignment& assignment, int64_t step,
                                       const std::string& folder) {
  const float value = static_cast<float>(assignment.stage());
  const std::map<std::string, std::string> metadata = {{"step", absl::StrCat(step)}};
  const std::string content =
      SafetensorsHeader({{absl::StrCat("w", assignment.stage()), {1}, &value}}, metadata) +
      std::string(reinterpret_cast<const char*>(&value), sizeof(value));
  const std::string sha256 = Sha256Hex(content);
  const v1::StagePlan& plan = assignment.plan().stage(static_cast<int>(assignment.stage()));
  v1::WeightsSlice slice;
  slice.set_first_layer(plan.first_layer());
  slice.set_end_layer(plan.end_layer());
  slice.set_sha256(sha256);
  slice.set_size_bytes(static_cast<int64_t>(content.size()));
  if (!folder.empty()) {
    EXPECT_TRUE(MakeDirectories(folder).ok());
    const std::string path = absl::StrCat(folder, "/", sha256, ".safetensors");
    EXPECT_TRUE(WriteFileAtomically(path, content).ok());
    slice.set_uri("file://" + path);
    return slice;
  }
  const std::string path =
      absl::StrCat(::testing::TempDir(), "/slice-", instance_, "-", assignment.job_id());
  EXPECT_TRUE(WriteFileAtomically(path, content).ok());
  const absl::Status uploaded =
      UploadBlob(blobs_.get(), path, sha256, absl::Now() + absl::Seconds(10));
  EXPECT_TRUE(uploaded.ok()) << uploaded;
  std::filesystem::remove(path);
  return slice;
}

void FakeWorker::Finish(const v1::StageAssignment& assignment, int64_t step,
                        const std::string& reason) {
  v1::StageEvent event = EventOf(assignment);
  v1::StageFinished* finished = event.mutable_finished();
  *finished->mutable_weights() = MakeSlice(assignment, 0, "");
  finished->set_weights_step(step);
  finished->set_stop_reason(reason);
  Report(event).IgnoreError();
}

void FakeWorker::Generate(const v1::StageAssignment& assignment) {
  v1::StageEvent event = EventOf(assignment);
  const v1::GenerateRequest& request = assignment.generate().request();
  for (int64_t i = 0; i < request.max_tokens(); ++i) {
    event.set_token(request.prompt(0) + i);
    Report(event).IgnoreError();
    if (i == behaviour_.hold_after_token) return;
  }
  event.mutable_finished();
  Report(event).IgnoreError();
}

}  // namespace headrace
