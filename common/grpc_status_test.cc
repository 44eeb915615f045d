#include "common/grpc_status.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

TEST(GrpcStatusTest, EveryCodeGoesThereAndBack) {
  for (int code = 0; code <= 16; ++code) {
    const std::string message = code == 0 ? "" : "why";
    const absl::Status status(static_cast<absl::StatusCode>(code), message);
    EXPECT_EQ(FromGrpc(ToGrpc(status)), status) << code;
  }
  EXPECT_EQ(ToGrpc(absl::NotFoundError("x")).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST(GrpcStatusTest, LeavesOutWhatGrpcSaysAroundTheCause) {
  const auto message = [](const char* text) {
    return std::string(FromGrpc({grpc::StatusCode::UNAVAILABLE, text}).message());
  };
  EXPECT_EQ(message("failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:7070: "
                    "Failed to connect to remote host: Connection refused"),
            "127.0.0.1:7070: Connection refused");
  EXPECT_EQ(message("failed to connect to all addresses; last error: UNKNOWN: unix:/tmp/c: "
                    "Connection refused"),
            "unix:/tmp/c: Connection refused");
  EXPECT_EQ(message("failed to connect to all addresses; last error: UNKNOWN: unix:/tmp/c: "
                    "connection attempt timed out before receiving SETTINGS frame"),
            "unix:/tmp/c: no answer");
  EXPECT_EQ(message("Socket closed"), "Socket closed");
}

}  // namespace
}  // namespace headrace
