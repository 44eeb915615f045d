#include "common/cancellation.h"

#include <grpcpp/grpcpp.h>

#include <thread>

#include "absl/time/clock.h"
#include "common/channel.h"
#include "gtest/gtest.h"
#include "headrace/v1/cluster.grpc.pb.h"

namespace headrace {
namespace {

// A call to an address where nobody listens, waiting for somebody to.
grpc::Status WaitingCall(Cancellation* cancellation) {
  const auto stub = v1::CoordinatorService::NewStub(
      MakeChannel("unix:/nonexistent/headrace-cancellation-test", ChannelUse::kControl));
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  const Cancellation::Call call(cancellation, &context);
  v1::ListWorkersResponse response;
  return stub->ListWorkers(&context, {}, &response);
}

TEST(Cancellation, EndsACallInFlightOnAnotherThread) {
  Cancellation cancellation;
  grpc::Status status;
  std::thread caller([&] { status = WaitingCall(&cancellation); });
  cancellation.Cancel();  // before or after the call began: it ends either way
  caller.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
}

TEST(Cancellation, EndsLaterCallsToo) {
  Cancellation cancellation;
  cancellation.Cancel();
  EXPECT_EQ(WaitingCall(&cancellation).error_code(), grpc::StatusCode::CANCELLED);
}

TEST(Cancellation, EndsAPause) {
  Cancellation cancellation;
  bool whole = true;
  std::thread waiter([&] { whole = cancellation.Pause(absl::Seconds(30)); });
  cancellation.Cancel();
  waiter.join();
  EXPECT_FALSE(whole);
  EXPECT_TRUE(cancellation.cancelled());
}

TEST(Cancellation, LetsAPauseRunOut) {
  Cancellation cancellation;
  EXPECT_TRUE(cancellation.Pause(absl::Milliseconds(1)));
}

}  // namespace
}  // namespace headrace
