#include "common/status.h"

#include <gtest/gtest.h>

#include <memory>

namespace headrace {
namespace {

TEST(StatusTest, ContextGoesInFrontAndTheCodeStays) {
  const absl::Status status = Annotate(absl::NotFoundError("no blob"), "stage 2, step 118");
  EXPECT_EQ(status, absl::NotFoundError("stage 2, step 118: no blob"));
  EXPECT_TRUE(Annotate(absl::OkStatus(), "stage 2").ok());
}

TEST(StatusTest, DetailStaysToo) {
  absl::Status status = absl::InternalError("x");
  status.SetPayload("kind", absl::Cord("detail"));
  EXPECT_EQ(Annotate(status, "y").GetPayload("kind"), absl::Cord("detail"));
}

absl::StatusOr<std::unique_ptr<int>> Make(bool good) {
  if (!good) return absl::AbortedError("bad");
  return std::make_unique<int>(7);
}

absl::StatusOr<int> Use(bool first, bool second) {
  HEADRACE_RETURN_IF_ERROR(Make(first).status());
  HEADRACE_ASSIGN_OR_RETURN(const std::unique_ptr<int> value, Make(second));
  return *value;
}

TEST(StatusTest, TheMacrosReturnErrorsAndMoveValues) {
  EXPECT_EQ(*Use(true, true), 7);
  EXPECT_EQ(Use(false, true).status(), absl::AbortedError("bad"));
  EXPECT_EQ(Use(true, false).status(), absl::AbortedError("bad"));
}

}  // namespace
}  // namespace headrace
