#include "common/channel.h"

#include <errno.h>
#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/impl/server_builder_plugin.h>
#include <grpcpp/impl/server_initializer.h>
#include <grpcpp/impl/service_type.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/flags.h"
#include "common/status.h"

namespace headrace {
namespace {

constexpr int kKeepaliveMs = 1000;
constexpr int kRareKeepaliveMs = 10'000;                     // where heartbeats tell more
constexpr int kTensorMessageBytes = (1 << 20) + (64 << 10);  // one chunk and its header
constexpr int kControlMessageBytes = 8 << 20;
constexpr std::string_view kUnix = "unix:";

// A service without methods: the one thing a grpc::Server keeps and destroys after its last call.
class LockHolder : public grpc::Service {
 public:
  explicit LockHolder(std::unique_ptr<FileLock> lock) : lock_(std::move(lock)) {}

 private:
  std::unique_ptr<FileLock> lock_;
};

class LockPlugin : public grpc::ServerBuilderPlugin {
 public:
  explicit LockPlugin(std::shared_ptr<LockHolder> holder) : holder_(std::move(holder)) {}
  std::string name() override { return "headrace_socket_lock"; }
  void InitServer(grpc::ServerInitializer* initializer) override {
    initializer->RegisterService(std::move(holder_));
  }
  void Finish(grpc::ServerInitializer*) override {}
  void ChangeArguments(const std::string&, void*) override {}

 private:
  std::shared_ptr<LockHolder> holder_;  // shared because gRPC asks for it
};

class LockOption : public grpc::ServerBuilderOption {
 public:
  explicit LockOption(std::unique_ptr<FileLock> lock)
      : holder_(std::make_shared<LockHolder>(std::move(lock))) {}
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    plugins->push_back(std::make_unique<LockPlugin>(std::move(holder_)));
  }

 private:
  std::shared_ptr<LockHolder> holder_;
};

// Whoever has the lock beside the path owns the path: a socket that lies there is a dead server's.
absl::StatusOr<std::unique_ptr<FileLock>> ClaimSocket(const std::string& path) {
  HEADRACE_ASSIGN_OR_RETURN(std::unique_ptr<FileLock> lock,
                            FileLock::Acquire(absl::StrCat(path, ".lock")));
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return lock;
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot listen on ", path));
  }
  if (!S_ISSOCK(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot listen on ", path, ": a file that is no socket is in the way"));
  }
  if (unlink(path.c_str()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot remove the stale socket ", path));
  }
  return lock;
}

}  // namespace

grpc::ChannelArguments MakeChannelArguments(ChannelUse use) {
  grpc::ChannelArguments arguments;
  // Retries hold the first 256 KiB of a stream back for seconds.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  const bool beats = use == ChannelUse::kHeartbeats || use == ChannelUse::kBlobs;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, beats ? kRareKeepaliveMs : kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // Also the time one attempt to connect may take.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
  if (use == ChannelUse::kTensors || use == ChannelUse::kBlobs) {
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetMaxReceiveMessageSize(kTensorMessageBytes);
  } else {
    arguments.SetMaxReceiveMessageSize(kControlMessageBytes);
  }
  return arguments;
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, ChannelUse use) {
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(),
                                   MakeChannelArguments(use));
}

absl::Status AddListener(grpc::ServerBuilder* builder, const std::string& address, int* port,
                         ListenUse use) {
  HEADRACE_RETURN_IF_ERROR(CheckAddress(address));
  if (std::string_view(address).substr(0, kUnix.size()) == kUnix) {
    HEADRACE_ASSIGN_OR_RETURN(std::unique_ptr<FileLock> lock,
                              ClaimSocket(address.substr(kUnix.size())));
    builder->SetOption(std::make_unique<LockOption>(std::move(lock)));
  }
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS,
                              use == ListenUse::kCoordinator ? kRareKeepaliveMs : kKeepaliveMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Below the clients' keepalive, else the server ends their calls for "too_many_pings".
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              kKeepaliveMs / 2);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  builder->SetMaxReceiveMessageSize(kControlMessageBytes);
  builder->AddListeningPort(address, grpc::InsecureServerCredentials(), port);
  return absl::OkStatus();
}

}  // namespace headrace
