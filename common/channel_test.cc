#include "common/channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "headrace/v1/cluster.grpc.pb.h"
#include "tests/temp_dir.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

class Store : public v1::CoordinatorService::Service {
 public:
  grpc::Status StatBlob(grpc::ServerContext*, const v1::StatBlobRequest* request,
                        v1::StatBlobResponse* response) override {
    response->set_size_bytes(static_cast<int64_t>(request->sha256().size()));
    return grpc::Status::OK;
  }
};

struct Running {
  Store service;
  std::unique_ptr<grpc::Server> server;
  int port = 0;
};

absl::Status Start(const std::string& address, Running* running) {
  grpc::ServerBuilder builder;
  const absl::Status status = AddListener(&builder, address, &running->port);
  if (!status.ok()) return status;
  builder.RegisterService(&running->service);
  running->server = builder.BuildAndStart();
  return running->server == nullptr ? absl::UnavailableError("in use") : absl::OkStatus();
}

grpc::Status Call(const std::string& address, ChannelUse use, size_t request_bytes = 1) {
  const auto stub = v1::CoordinatorService::NewStub(MakeChannel(address, use));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  v1::StatBlobRequest request;
  request.set_sha256(std::string(request_bytes, 'x'));
  v1::StatBlobResponse response;
  return stub->StatBlob(&context, request, &response);
}

TEST(ChannelTest, ServesOnAnyPortAndSaysWhich) {
  Running running;
  ASSERT_TRUE(Start("127.0.0.1:0", &running).ok());
  ASSERT_GT(running.port, 0);
  const std::string address = absl::StrCat("127.0.0.1:", running.port);
  EXPECT_TRUE(Call(address, ChannelUse::kControl).ok());
  EXPECT_TRUE(Call(address, ChannelUse::kTensors).ok());
}

TEST(ChannelTest, ASecondServerCannotShareAPort) {
  Running first, second;
  ASSERT_TRUE(Start("127.0.0.1:0", &first).ok());
  EXPECT_FALSE(Start(absl::StrCat("127.0.0.1:", first.port), &second).ok());
}

TEST(ChannelTest, ASecondServerCannotStealASocketButALaterOneCanHaveIt) {
  TempDir dir;
  const std::string address = absl::StrCat("unix:", dir / "s");
  Running first, second;
  ASSERT_TRUE(Start(address, &first).ok());
  const absl::Status refused = Start(address, &second);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_TRUE(Call(address, ChannelUse::kControl).ok());
  first.server->Shutdown();
  first.server.reset();
  EXPECT_TRUE(Start(address, &second).ok());
  EXPECT_TRUE(Call(address, ChannelUse::kControl).ok());
}

TEST(ChannelTest, ADeadServersSocketIsReplaced) {
  TempDir dir;
  const std::string path = dir / "s";
  const int stale = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  path.copy(name.sun_path, sizeof(name.sun_path) - 1);
  ASSERT_EQ(bind(stale, reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
  close(stale);
  ASSERT_TRUE(std::filesystem::is_socket(path));
  Running running;
  ASSERT_TRUE(Start("unix:" + path, &running).ok());
  EXPECT_TRUE(Call("unix:" + path, ChannelUse::kTensors).ok());
}

TEST(ChannelTest, AFileInTheWayOfASocketIsLeftAlone) {
  TempDir dir;
  ASSERT_TRUE(WriteFileAtomically(dir / "s", "precious").ok());
  Running running;
  const absl::Status status = Start("unix:" + (dir / "s"), &running);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("in the way"));
  EXPECT_EQ(*ReadFile(dir / "s"), "precious");
}

TEST(ChannelTest, ABadAddressIsRefusedBeforeAnythingIsBound) {
  Running running;
  EXPECT_EQ(Start("nonsense", &running).code(), absl::StatusCode::kInvalidArgument);
}

TEST(ChannelTest, AMessageBeyondTheLimitIsRefusedAndASmallerOneIsNot) {
  Running running;
  ASSERT_TRUE(Start("127.0.0.1:0", &running).ok());
  const std::string address = absl::StrCat("127.0.0.1:", running.port);
  EXPECT_TRUE(Call(address, ChannelUse::kControl, 7 << 20).ok());
  EXPECT_EQ(Call(address, ChannelUse::kControl, 9 << 20).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST(ChannelTest, NobodyThereIsUnavailableAtOnce) {
  const auto before = std::chrono::steady_clock::now();
  EXPECT_EQ(Call("127.0.0.1:1", ChannelUse::kControl).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(5));
}

}  // namespace
}  // namespace headrace
