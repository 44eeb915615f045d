#include "coordinator/coordinator.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/channel.h"
#include "common/file.h"
#include "common/listen_error.h"
#include "common/status.h"
#include "plan/planner/planner.h"

namespace headrace {
namespace {

// Streams take at most 64 + 64 + 16 of these; the rest is for short calls.
constexpr int kMaxThreads = 256;
constexpr size_t kMaxMemoryBytes = size_t{512} << 20;  // of messages in flight
constexpr absl::Duration kStopTime = absl::Milliseconds(500);

// "127.0.0.1:0" with port 7070 → "127.0.0.1:7070"; a socket's path stays.
std::string BoundAddress(const std::string& listen, int port) {
  if (absl::StartsWith(listen, "unix:")) return listen;
  return absl::StrCat(listen.substr(0, listen.rfind(':')), ":", port);
}

}  // namespace

Coordinator::Coordinator(CoordinatorOptions options)
    : options_(std::move(options)), registry_(options_.clock, options_.lease, options_.heartbeat) {}

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Start(CoordinatorOptions options) {
  if (!options.plan.train) options.plan.train = &PlanJob;
  if (!options.plan.layers) options.plan.layers = &DistinctLayers;
  if (!options.plan.generate) options.plan.generate = &PlanGenerate;
  std::unique_ptr<Coordinator> coordinator(new Coordinator(std::move(options)));
  HEADRACE_RETURN_IF_ERROR(coordinator->Open());
  HEADRACE_RETURN_IF_ERROR(coordinator->Listen());
  return coordinator;
}

Coordinator::~Coordinator() { Stop(kStopTime); }

absl::Status Coordinator::Open() {
  HEADRACE_ASSIGN_OR_RETURN(store_, Store::Open(options_.data_dir));
  JobDriver::Parts parts;
  parts.clock = options_.clock;
  parts.store = store_.get();
  parts.registry = &registry_;
  parts.hub = &hub_;
  parts.metrics = &metrics_;
  parts.traces = &traces_;
  parts.store_patience = options_.store_patience;
  parts.adopt_time = std::max(options_.adopt_time, 2 * options_.lease);
  parts.guards = {&watches_, &blobs_, &generates_};
  HEADRACE_ASSIGN_OR_RETURN(driver_, JobDriver::Start(std::move(parts), options_.plan));
  if (!options_.metrics.empty()) HEADRACE_RETURN_IF_ERROR(metrics_.Serve(options_.metrics));
  return absl::OkStatus();
}

absl::Status Coordinator::Listen() {
  CoordinatorServiceImpl::Parts parts;
  parts.store = store_.get();
  parts.registry = &registry_;
  parts.driver = driver_.get();
  parts.hub = &hub_;
  parts.metrics = &metrics_;
  parts.traces = &traces_;
  parts.plan = options_.plan;
  parts.watches = &watches_;
  parts.blobs = &blobs_;
  parts.generates = &generates_;
  clients_ = std::make_unique<CoordinatorServiceImpl>(std::move(parts));
  workers_ = std::make_unique<RegistryServiceImpl>(
      &registry_, driver_.get(), &metrics_,
      RegistryServiceImpl::Lease{options_.heartbeat, options_.lease});

  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  grpc::ResourceQuota quota("coordinator");
  quota.SetMaxThreads(kMaxThreads);
  quota.Resize(kMaxMemoryBytes);
  builder.SetResourceQuota(quota);
  int port = 0;
  HEADRACE_RETURN_IF_ERROR(AddListener(&builder, options_.listen, &port, ListenUse::kCoordinator));
  builder.RegisterService(clients_.get());
  builder.RegisterService(workers_.get());
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) {
    return ListenError(options_.listen);
  }
  address_ = BoundAddress(options_.listen, port);
  if (options_.address_file.empty()) return absl::OkStatus();
  return WriteFileAtomically(options_.address_file, address_);
}

void Coordinator::Stop(absl::Duration time) {
  if (server_ != nullptr) server_->GetHealthCheckService()->SetServingStatus(false);
  hub_.Close();
  if (driver_ != nullptr) driver_->Stop();
  if (server_ == nullptr) return;
  server_->Shutdown(absl::ToChronoTime(absl::Now() + time));
  server_->Wait();
  server_.reset();
}

}  // namespace headrace
