#include "common/blob_transfer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/channel.h"
#include "common/file.h"
#include "common/sha256.h"
#include "tests/temp_dir.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

// A store in memory that ends its next `drops` streams after two chunks each.
class FakeStore : public v1::CoordinatorService::Service {
 public:
  grpc::Status StatBlob(grpc::ServerContext*, const v1::StatBlobRequest* request,
                        v1::StatBlobResponse* response) override {
    absl::MutexLock lock(&mu_);
    ++stats_;
    response->set_size_bytes(static_cast<int64_t>(blobs_[request->sha256()].size()));
    response->set_complete(Sha256Hex(blobs_[request->sha256()]) == request->sha256());
    return grpc::Status::OK;
  }

  grpc::Status UploadBlob(grpc::ServerContext*, grpc::ServerReader<v1::UploadBlobRequest>* reader,
                          v1::UploadBlobResponse*) override {
    v1::UploadBlobRequest request;
    std::string sha256;
    for (int chunks = 0; reader->Read(&request); ++chunks) {
      absl::MutexLock lock(&mu_);
      if (chunks == 0) sha256 = request.sha256();
      std::string& blob = blobs_[sha256];
      if (request.offset() != static_cast<int64_t>(blob.size())) {
        return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "wrong offset");
      }
      if (request.data().size() > 1 << 20) {
        return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "chunk too large");
      }
      blob += request.data();
      received_ += static_cast<int64_t>(request.data().size());
      if (chunks == 1 && drops_ > 0 && drops_-- > 0) {
        return grpc::Status(grpc::StatusCode::UNAVAILABLE, "dropped");
      }
    }
    absl::MutexLock lock(&mu_);
    if (Sha256Hex(blobs_[sha256]) == sha256) return grpc::Status::OK;
    blobs_[sha256].clear();
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "wrong hash");
  }

  grpc::Status DownloadBlob(grpc::ServerContext*, const v1::DownloadBlobRequest* request,
                            grpc::ServerWriter<v1::DownloadBlobResponse>* writer) override {
    const std::string blob = Get(request->sha256());
    if (blob.empty()) return grpc::Status(grpc::StatusCode::NOT_FOUND, "no such blob");
    v1::DownloadBlobResponse response;
    int chunks = 0;
    for (size_t at = static_cast<size_t>(request->offset()); at < blob.size(); at += 1 << 20) {
      response.set_size_bytes(static_cast<int64_t>(blob.size()));
      response.set_data(blob.substr(at, 1 << 20));
      writer->Write(response);
      absl::MutexLock lock(&mu_);
      sent_ += static_cast<int64_t>(response.data().size());
      if (++chunks == 2 && drops_ > 0 && drops_-- > 0) {
        return grpc::Status(grpc::StatusCode::UNAVAILABLE, "dropped");
      }
    }
    return grpc::Status::OK;
  }

  void Put(const std::string& sha256, std::string blob) {
    absl::MutexLock lock(&mu_);
    blobs_[sha256] = std::move(blob);
  }
  std::string Get(const std::string& sha256) {
    absl::MutexLock lock(&mu_);
    return blobs_[sha256];
  }
  void Drop(int streams) {
    absl::MutexLock lock(&mu_);
    drops_ = streams;
  }
  int64_t received() {
    absl::MutexLock lock(&mu_);
    return received_;
  }
  int64_t sent() {
    absl::MutexLock lock(&mu_);
    return sent_;
  }
  int stats() {
    absl::MutexLock lock(&mu_);
    return stats_;
  }

 private:
  absl::Mutex mu_;
  std::map<std::string, std::string> blobs_ ABSL_GUARDED_BY(mu_);
  int drops_ ABSL_GUARDED_BY(mu_) = 0;
  int stats_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t received_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t sent_ ABSL_GUARDED_BY(mu_) = 0;
};

class BlobTransferTest : public testing::Test {
 protected:
  BlobTransferTest() {
    for (size_t i = 0; i < blob_.size(); ++i) blob_[i] = static_cast<char>(i * 2654435761u >> 13);
    sha256_ = Sha256Hex(blob_);
    int port = 0;
    grpc::ServerBuilder builder;
    EXPECT_TRUE(AddListener(&builder, "127.0.0.1:0", &port).ok());
    builder.RegisterService(&store_);
    server_ = builder.BuildAndStart();
    stub_ = v1::CoordinatorService::NewStub(
        MakeChannel(absl::StrCat("127.0.0.1:", port), ChannelUse::kControl));
  }

  static absl::Time Soon() { return absl::Now() + absl::Seconds(30); }
  absl::Status Upload() {
    EXPECT_TRUE(WriteFileAtomically(dir_ / "source", blob_).ok());
    return UploadBlob(stub_.get(), dir_ / "source", sha256_, Soon());
  }
  absl::Status Download() { return DownloadBlob(stub_.get(), sha256_, dir_ / "blob", Soon()); }

  TempDir dir_;
  FakeStore store_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::CoordinatorService::Stub> stub_;
  std::string blob_ = std::string((9 << 20) + 12345, '\0');
  std::string sha256_;
};

TEST_F(BlobTransferTest, UploadsAFileInChunks) {
  ASSERT_TRUE(Upload().ok());
  EXPECT_EQ(store_.Get(sha256_), blob_);
}

TEST_F(BlobTransferTest, DoesNotUploadWhatTheStoreHas) {
  store_.Put(sha256_, blob_);
  ASSERT_TRUE(Upload().ok());
  EXPECT_EQ(store_.received(), 0);
}

TEST_F(BlobTransferTest, AnUploadGoesOnWhereItWasDropped) {
  store_.Drop(3);
  const absl::Status status = Upload();
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(store_.Get(sha256_), blob_);
  EXPECT_EQ(store_.received(), static_cast<int64_t>(blob_.size())) << "bytes were sent twice";
}

TEST_F(BlobTransferTest, UploadsAnEmptyFile) {
  blob_.clear();
  sha256_ = Sha256Hex("");
  EXPECT_TRUE(Upload().ok());
}

TEST_F(BlobTransferTest, ARefusedUploadIsNotRetried) {
  sha256_ = Sha256Hex("something else");
  const absl::Status status = Upload();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(store_.stats(), 1);
}

TEST_F(BlobTransferTest, DownloadsABlob) {
  store_.Put(sha256_, blob_);
  const absl::Status status = Download();
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(*ReadFile(dir_ / "blob"), blob_);
  EXPECT_FALSE(std::filesystem::exists(dir_ / "blob.part"));
  ASSERT_TRUE(Download().ok());
  EXPECT_EQ(store_.sent(), static_cast<int64_t>(blob_.size())) << "downloaded again";
}

TEST_F(BlobTransferTest, ADownloadGoesOnWhereItWasDropped) {
  store_.Put(sha256_, blob_);
  store_.Drop(3);
  const absl::Status status = Download();
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(*ReadFile(dir_ / "blob"), blob_);
  EXPECT_EQ(store_.sent(), static_cast<int64_t>(blob_.size())) << "bytes were sent twice";
}

TEST_F(BlobTransferTest, ADownloadGoesOnWhereAnEarlierProcessStopped) {
  store_.Put(sha256_, blob_);
  ASSERT_TRUE(WriteFileAtomically(dir_ / "blob.part", blob_.substr(0, 5'000'000)).ok());
  ASSERT_TRUE(Download().ok());
  EXPECT_EQ(*ReadFile(dir_ / "blob"), blob_);
  EXPECT_EQ(store_.sent(), static_cast<int64_t>(blob_.size()) - 5'000'000);
}

TEST_F(BlobTransferTest, ADamagedPartIsFetchedAnew) {
  store_.Put(sha256_, blob_);
  ASSERT_TRUE(WriteFileAtomically(dir_ / "blob.part", std::string(5'000'000, 'x')).ok());
  const absl::Status status = Download();
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(*ReadFile(dir_ / "blob"), blob_);
}

TEST_F(BlobTransferTest, ABlobOfTheWrongContentIsNeverLeftBehind) {
  store_.Put(sha256_, blob_ + "more");
  const absl::Status status = Download();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_FALSE(std::filesystem::exists(dir_ / "blob"));
}

TEST_F(BlobTransferTest, AnUnknownBlobIsNotFoundAtOnce) {
  const absl::Status status = Download();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(sha256_));
}

TEST_F(BlobTransferTest, TwoDownloadsOfOneBlobDoNotMix) {
  store_.Put(sha256_, blob_);
  std::thread other([&] { EXPECT_TRUE(Download().ok()); });
  EXPECT_TRUE(Download().ok());
  other.join();
  EXPECT_EQ(*ReadFile(dir_ / "blob"), blob_);
  EXPECT_FALSE(std::filesystem::exists(dir_ / "blob.part"));
}

TEST_F(BlobTransferTest, NobodyThereIsTriedUntilTheDeadline) {
  server_->Shutdown();
  ASSERT_TRUE(WriteFileAtomically(dir_ / "source", blob_).ok());
  const absl::Time start = absl::Now();
  const absl::Time deadline = start + absl::Seconds(1);
  EXPECT_EQ(UploadBlob(stub_.get(), dir_ / "source", sha256_, deadline).code(),
            absl::StatusCode::kUnavailable);
  EXPECT_GT(absl::Now() - start, absl::Milliseconds(100));
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
}

}  // namespace
}  // namespace headrace
