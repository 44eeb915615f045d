// For tests: workers that hold slices, each with a disk of its own, and a coordinator's store, all
// in this process.
#pragma once

#include <grpc/grpc.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/channel.h"
#include "common/file.h"
#include "common/grpc_status.h"
#include "common/sha256.h"
#include "tests/temp_dir.h"
#include "worker/checkpoint/slice_server.h"
#include "worker/checkpoint/slice_transfer.h"

namespace headrace {

// gRPC's library stays: when its last object goes, its own threads may poll for 10 s more.
inline const bool kGrpcStays = (grpc_init(), true);

inline absl::Time Soon() { return absl::Now() + absl::Seconds(60); }

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

class SliceTest : public testing::Test {
 protected:
  SliceTest() {
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
  ~SliceTest() override { server_->Shutdown(std::chrono::system_clock::now()); }

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

}  // namespace headrace
