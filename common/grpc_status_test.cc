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

}  // namespace
}  // namespace headrace
