#include "worker/checkpoint/slice_server.h"

#include <gmock/gmock.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>

#include "worker/checkpoint/slice_fixture.h"

namespace headrace {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

using SliceServerTest = SliceTest;

TEST_F(SliceServerTest, ANeighbourKeepsWhatItIsSent) {
  const absl::Status sent = Send(&a_);
  ASSERT_TRUE(sent.ok()) << sent;
  EXPECT_TRUE(*ReadFile(*a_.store->Find(slice_.sha256())) == content_);
  ASSERT_THAT(a_.store->Held(), SizeIs(1));
  EXPECT_EQ(a_.store->Held()[0].step(), 7);
  ExpectNothingUnfinished("a");
}

TEST_F(SliceServerTest, SlicesOfOtherJobsAndGenerationsAreRefused) {
  EXPECT_EQ(Send(&a_, "j2").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Send(&a_, "j1", 2).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(a_.store->Held(), IsEmpty());
  ExpectNothingUnfinished("a");
}

TEST_F(SliceServerTest, ASliceWithAnotherHashIsNotKept) {
  slice_.set_sha256(Sha256Hex("something else"));
  EXPECT_EQ(Send(&a_).code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(a_.store->Held(), IsEmpty());
  ExpectNothingUnfinished("a");
}

struct BadPut {
  const char* what;
  std::function<void(v1::PutSliceRequest*)> change;
  absl::StatusCode code;
};

TEST_F(SliceServerTest, HostilePutsAreRefusedAndLeaveNothing) {
  const BadPut cases[] = {
      {"a size no disk has",
       [](v1::PutSliceRequest* r) { r->set_size_bytes(std::numeric_limits<int64_t>::max()); },
       absl::StatusCode::kResourceExhausted},
      {"a negative size", [](v1::PutSliceRequest* r) { r->set_size_bytes(-1); },
       absl::StatusCode::kInvalidArgument},
      {"less than was said", [](v1::PutSliceRequest* r) { r->set_size_bytes(1 << 20); },
       absl::StatusCode::kDataLoss},
      {"more than was said", [](v1::PutSliceRequest* r) { r->set_size_bytes(3); },
       absl::StatusCode::kDataLoss},
      {"a path for a hash", [](v1::PutSliceRequest* r) { r->set_sha256("../../../tmp/x"); },
       absl::StatusCode::kInvalidArgument},
      {"no step", [](v1::PutSliceRequest* r) { r->set_step(0); },
       absl::StatusCode::kInvalidArgument},
      {"a chunk too large",
       [](v1::PutSliceRequest* r) {
         r->set_data(std::string((1 << 20) + 1, 'x'));
         r->set_size_bytes(4 << 20);
       },
       absl::StatusCode::kInvalidArgument},
  };
  for (const BadPut& bad : cases) {
    v1::PutSliceRequest request;
    request.set_job_id("j1");
    request.set_generation(1);
    request.set_step(7);
    request.set_sha256(Sha256Hex("data"));
    request.set_size_bytes(4);
    request.set_data("data");
    bad.change(&request);
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(Soon()));
    v1::PutSliceResponse response;
    const auto writer = a_.stub->PutSlice(&context, &response);
    writer->Write(request);
    writer->WritesDone();
    EXPECT_EQ(FromGrpc(writer->Finish()).code(), bad.code) << bad.what;
  }
  EXPECT_THAT(a_.store->Held(), IsEmpty());
  ExpectNothingUnfinished("a");
}

TEST_F(SliceServerTest, AThirdThatComesAtOnceIsRefusedUntilASilentOneIsCutOff) {
  Holder holder(dir_, "impatient", absl::Milliseconds(50));
  grpc::ClientContext contexts[2];
  v1::PutSliceResponse responses[2];
  std::unique_ptr<grpc::ClientWriterInterface<v1::PutSliceRequest>> writers[2];
  for (int i = 0; i < 2; ++i) {
    contexts[i].set_deadline(absl::ToChronoTime(Soon()));
    writers[i] = holder.stub->PutSlice(&contexts[i], &responses[i]);
    v1::PutSliceRequest request;
    request.set_job_id("j1");
    request.set_generation(1);
    request.set_step(i + 1);
    request.set_sha256(Sha256Hex("data"));
    request.set_size_bytes(4);
    request.set_data("da");
    ASSERT_TRUE(writers[i]->Write(request));
  }
  const absl::Time deadline = Soon();
  while (NumUnfinished("impatient") < 2 && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  absl::Status third;
  bool refused = false;
  do {
    third = Send(&holder);
    refused |= absl::IsUnavailable(third);
    absl::SleepFor(absl::Milliseconds(10));
  } while (!third.ok() && absl::Now() < deadline);
  EXPECT_TRUE(third.ok()) << third;
  EXPECT_TRUE(refused);
  for (int i = 0; i < 2; ++i) {
    contexts[i].TryCancel();
    EXPECT_FALSE(writers[i]->Finish().ok());
  }
}

}  // namespace
}  // namespace headrace
