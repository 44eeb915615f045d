// Slices between workers, each with a disk of its own, a coordinator's store and a shared folder.
#include "worker/checkpoint/slice_transfer.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/channel.h"
#include "common/file.h"
#include "common/grpc_status.h"
#include "common/sha256.h"
#include "tests/temp_dir.h"
#include "worker/checkpoint/slice_server.h"

namespace headrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

absl::Time Soon() { return absl::Now() + absl::Seconds(60); }

// Serves generation 1 of job j1.
class Holder final : public v1::StageService::Service {
 public:
  Holder(const TempDir& dir, const std::string& name, absl::Duration patience)
      : store(*SliceStore::Open(dir / (name + "-slices"))),
        address(absl::StrCat("unix:", dir / name)),
        slices_(store.get(), patience) {
    int port = 0;
    grpc::ServerBuilder builder;
    EXPECT_TRUE(AddListener(&builder, address, &port).ok());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    stub = v1::StageService::NewStub(MakeChannel(address, ChannelUse::kTensors));
  }
  ~Holder() override { End(); }
  void End() {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    server_ = nullptr;
  }

  grpc::Status PutSlice(grpc::ServerContext* context,
                        grpc::ServerReader<v1::PutSliceRequest>* reader,
                        v1::PutSliceResponse*) override {
    return ToGrpc(slices_.Put(context, reader, [](const std::string& job_id, int64_t generation) {
      return job_id == "j1" && generation == 1;
    }));
  }
  grpc::Status GetSlice(grpc::ServerContext*, const v1::GetSliceRequest* request,
                        grpc::ServerWriter<v1::GetSliceResponse>* writer) override {
    last_offset = request->offset();
    if (breaks_after > 0) {  // dies on the way
      const std::string all = *ReadFile(*store->Find(request->sha256()));
      v1::GetSliceResponse response;
      response.set_size_bytes(static_cast<int64_t>(all.size()));
      response.set_data(all.substr(0, static_cast<size_t>(breaks_after)));
      writer->Write(response);
      return {grpc::StatusCode::UNAVAILABLE, "gone"};
    }
    return ToGrpc(slices_.Get(*request, writer));
  }

  const std::unique_ptr<SliceStore> store;
  const std::string address;
  std::unique_ptr<v1::StageService::Stub> stub;
  std::atomic<int64_t> breaks_after = 0, last_offset = -1;

 private:
  SliceServer slices_;
  std::unique_ptr<grpc::Server> server_;
};

class FakeStore final : public v1::CoordinatorService::Service {
 public:
  grpc::Status DownloadBlob(grpc::ServerContext*, const v1::DownloadBlobRequest* request,
                            grpc::ServerWriter<v1::DownloadBlobResponse>* writer) override {
    absl::MutexLock lock(&mu);
    ++asked;
    if (!blobs.contains(request->sha256())) return {grpc::StatusCode::NOT_FOUND, "no such blob"};
    const std::string& blob = blobs[request->sha256()];
    v1::DownloadBlobResponse response;
    response.set_size_bytes(static_cast<int64_t>(blob.size()));
    response.set_data(blob.substr(static_cast<size_t>(request->offset())));
    writer->Write(response);
    return grpc::Status::OK;
  }

  absl::Mutex mu;
  std::map<std::string, std::string> blobs ABSL_GUARDED_BY(mu);
  int asked ABSL_GUARDED_BY(mu) = 0;
};

class SliceTransferTest : public testing::Test {
 protected:
  SliceTransferTest() {
    for (size_t i = 0; i < content_.size(); ++i) {
      content_[i] = static_cast<char>(i * 2654435761u >> 13);
    }
    slice_.set_first_layer(0);
    slice_.set_end_layer(4);
    slice_.set_sha256(Sha256Hex(content_));
    slice_.set_size_bytes(static_cast<int64_t>(content_.size()));
    grpc::ServerBuilder builder;
    int port = 0;
    const std::string address = absl::StrCat("unix:", dir_ / "coordinator");
    EXPECT_TRUE(AddListener(&builder, address, &port).ok());
    builder.RegisterService(&coordinator_);
    server_ = builder.BuildAndStart();
    stub_ = v1::CoordinatorService::NewStub(MakeChannel(address, ChannelUse::kControl));
  }
  ~SliceTransferTest() override { server_->Shutdown(std::chrono::system_clock::now()); }

  void KeepAt(SliceStore* store, const std::string& content) {
    const std::string path = store->Temporary("j1", 7);
    ASSERT_TRUE(WriteFileAtomically(path, content).ok());
    v1::HeldSlice held;
    held.set_job_id("j1");
    held.set_step(7);
    held.set_sha256(slice_.sha256());
    ASSERT_TRUE(store->Keep(path, held).ok());
  }
  std::string WriteSource() {
    EXPECT_TRUE(WriteFileAtomically(dir_ / "source", content_).ok());
    return dir_ / "source";
  }
  absl::Status Send(Holder* to, const std::string& job = "j1", int64_t generation = 1) {
    return SendSlice(to->stub.get(), job, generation, 7, slice_.sha256(), WriteSource(), Soon(),
                     nullptr);
  }
  void Hold(Holder* holder) {
    KeepAt(holder->store.get(), content_);
    slice_.add_holder_addresses(holder->address);
  }
  absl::StatusOr<std::string> Fetch(Cancellation* cancellation = nullptr) {
    return FetchSlice(slice_, "j1", 7, own_.get(), stub_.get(), Soon(), cancellation);
  }
  void ExpectFetched() {
    const absl::StatusOr<std::string> path = Fetch();
    ASSERT_TRUE(path.ok()) << path.status();
    EXPECT_TRUE(*ReadFile(*path) == content_);
    EXPECT_EQ(*own_->Find(slice_.sha256()), *path);
    ExpectNothingUnfinished("own");
  }
  int NumUnfinished(const std::string& name) const {
    int files = 0;
    for (const auto& file : std::filesystem::directory_iterator(dir_ / (name + "-slices/0"))) {
      const std::string extension = file.path().extension().string();
      files += extension != ".safetensors" && !extension.empty();
    }
    return files;
  }
  void ExpectNothingUnfinished(const std::string& name) const { EXPECT_EQ(NumUnfinished(name), 0); }
  std::string Flipped() const {
    std::string flipped = content_;
    flipped[flipped.size() / 2] = static_cast<char>(flipped[flipped.size() / 2] ^ 1);
    return flipped;
  }
  int StoreAsked() {
    absl::MutexLock lock(&coordinator_.mu);
    return coordinator_.asked;
  }
  void PutInStore(const std::string& content) {
    absl::MutexLock lock(&coordinator_.mu);
    coordinator_.blobs[slice_.sha256()] = content;
  }

  const TempDir dir_;
  FakeStore coordinator_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::CoordinatorService::Stub> stub_;
  const std::unique_ptr<SliceStore> own_ = *SliceStore::Open(dir_ / "own-slices");
  Holder a_{dir_, "a", SliceServer::kPatience}, b_{dir_, "b", SliceServer::kPatience};
  std::string content_ = std::string((3 << 20) + 12345, '\0');
  v1::WeightsSlice slice_;
};

TEST_F(SliceTransferTest, ANeighbourKeepsWhatItIsSent) {
  const absl::Status sent = Send(&a_);
  ASSERT_TRUE(sent.ok()) << sent;
  EXPECT_TRUE(*ReadFile(*a_.store->Find(slice_.sha256())) == content_);
  ASSERT_THAT(a_.store->Held(), SizeIs(1));
  EXPECT_EQ(a_.store->Held()[0].step(), 7);
  ExpectNothingUnfinished("a");
}

TEST_F(SliceTransferTest, SlicesOfOtherJobsAndGenerationsAreRefused) {
  EXPECT_EQ(Send(&a_, "j2").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Send(&a_, "j1", 2).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(a_.store->Held(), IsEmpty());
  ExpectNothingUnfinished("a");
}

TEST_F(SliceTransferTest, ASliceWithAnotherHashIsNotKept) {
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

TEST_F(SliceTransferTest, HostilePutsAreRefusedAndLeaveNothing) {
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

TEST_F(SliceTransferTest, AThirdThatComesAtOnceIsRefusedUntilASilentOneIsCutOff) {
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

TEST_F(SliceTransferTest, WhatIsOnThisDiskIsNotFetched) {
  KeepAt(own_.get(), content_);
  ExpectFetched();
  EXPECT_EQ(StoreAsked(), 0);
}

TEST_F(SliceTransferTest, AHolderIsAskedBeforeTheStore) {
  Hold(&a_);
  ExpectFetched();
  EXPECT_EQ(StoreAsked(), 0);
}

TEST_F(SliceTransferTest, ADamagedCopyOfThisDiskIsDeletedAndFetchedAnew) {
  KeepAt(own_.get(), Flipped());
  Hold(&a_);
  ExpectFetched();
}

TEST_F(SliceTransferTest, ADamagedCopyOfAHolderIsPassedBy) {
  KeepAt(a_.store.get(), Flipped());
  slice_.add_holder_addresses(a_.address);
  Hold(&b_);
  ExpectFetched();
  EXPECT_EQ(b_.last_offset, 0) << "nobody knows which part was right";
}

TEST_F(SliceTransferTest, TheNextHolderGoesOnWhereOneDied) {
  Hold(&a_);
  Hold(&b_);
  a_.breaks_after = 100'000;
  ExpectFetched();
  EXPECT_EQ(b_.last_offset, 100'000);
}

TEST_F(SliceTransferTest, TheStoreHasWhatNoHolderHas) {
  slice_.add_holder_addresses(a_.address);
  slice_.add_holder_addresses(absl::StrCat("unix:", dir_ / "nobody"));
  PutInStore(content_);
  ExpectFetched();
}

TEST_F(SliceTransferTest, ASharedFolderIsReadInsteadOfTheStore) {
  slice_.set_uri(absl::StrCat("file://", WriteSource()));
  PutInStore(content_);
  ExpectFetched();
  EXPECT_EQ(StoreAsked(), 0);
}

TEST_F(SliceTransferTest, ATornFileOfASharedFolderIsDataLossThatNamesTheSlice) {
  ASSERT_TRUE(WriteFileAtomically(dir_ / "torn", content_.substr(0, 1 << 20)).ok());
  slice_.set_uri(absl::StrCat("file://", dir_ / "torn"));
  const absl::Status status = Fetch().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(slice_.sha256()), HasSubstr("layers 0 to 3 after step 7"),
                    HasSubstr("ends after 1048576 of")));
  ExpectNothingUnfinished("own");
}

TEST_F(SliceTransferTest, AMissingFileOfASharedFolderIsNotFound) {
  slice_.set_uri(absl::StrCat("file://", dir_ / "nothing"));
  EXPECT_EQ(Fetch().status().code(), absl::StatusCode::kNotFound);
}

TEST_F(SliceTransferTest, ADamagedBlobOfTheStoreIsDataLoss) {
  PutInStore(Flipped());
  const absl::Status status = Fetch().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(slice_.sha256()));
  ExpectNothingUnfinished("own");
}

// A holder that is gone may come back in a moment; after that the slice is lost.
TEST_F(SliceTransferTest, WhatOnlyADeadHolderHadIsNotFound) {
  Hold(&a_);
  a_.End();
  const absl::Time start = absl::Now();
  const absl::Status status = Fetch().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(a_.address));
  EXPECT_LT(absl::Now() - start, absl::Seconds(30));
}

TEST_F(SliceTransferTest, ASliceTooLargeForThisDiskIsRefusedBeforeItComes) {
  Hold(&a_);
  slice_.set_size_bytes(std::numeric_limits<int64_t>::max() / 2);
  EXPECT_EQ(Fetch().status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(a_.last_offset, -1);
}

TEST_F(SliceTransferTest, AFetchIsCancelled) {
  slice_.add_holder_addresses(absl::StrCat("unix:", dir_ / "nobody"));
  server_->Shutdown(std::chrono::system_clock::now());
  Cancellation cancellation;
  std::thread fetch(
      [&] { EXPECT_EQ(Fetch(&cancellation).status().code(), absl::StatusCode::kCancelled); });
  const absl::Time start = absl::Now();
  cancellation.Cancel();
  fetch.join();
  EXPECT_LT(absl::Now() - start, absl::Seconds(20));
}

}  // namespace
}  // namespace headrace
