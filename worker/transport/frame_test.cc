#include "worker/transport/frame.h"

#include <gmock/gmock.h>
#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include <random>

#include "absl/strings/escaping.h"
#include "headrace/v1/worker.pb.h"
#include "worker/transport/crc32c.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

v1::TensorHeader Header(int64_t length) {
  v1::TensorHeader header;
  header.set_job_id("j1");
  header.set_generation(2);
  header.set_from_stage(0);
  header.set_step(3);
  header.set_micro_batch(1);
  header.set_kind(v1::MESSAGE_KIND_ACTIVATION);
  header.set_element_type(v1::ELEMENT_TYPE_FLOAT32);
  header.add_shape(1);
  header.add_shape(2);
  header.set_total_bytes(8);
  header.set_length(length);
  return header;
}

std::string Flatten(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& s : slices)
    bytes.append(reinterpret_cast<const char*>(s.begin()), s.size());
  return bytes;
}

// `bytes` as it may come from the network: cut into slices of `slice_bytes`.
grpc::ByteBuffer Arrived(const std::string& bytes, size_t slice_bytes) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += slice_bytes) {
    slices.emplace_back(bytes.substr(at, slice_bytes));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::string Encoded(const std::string& payload) {
  v1::TensorHeader header = Header(static_cast<int64_t>(payload.size()));
  header.set_crc32c(Crc32c(payload));
  return Flatten(EncodeFrame(header, grpc::Slice(payload)));
}

// The example of docs/format-frame.md: if this changes, so must the page.
TEST(Frame, HasTheBytesTheFormatPageShows) {
  const std::string payload("\x00\x00\x80\x3f\x00\x00\x20\xc0", 8);  // 1.0f, -2.5f
  EXPECT_EQ(absl::BytesToHexString(Encoded(payload)),
            "0a1b"
            "0a026a31"    // job_id "j1"
            "1002"        // generation 2
            "2003"        // step 3
            "3001"        // micro_batch 1
            "3802"        // kind ACTIVATION
            "4001"        // element_type FLOAT32
            "4a020102"    // shape [1, 2]
            "5808"        // total_bytes 8
            "6008"        // length 8
            "6dcb11bdd5"  // crc32c
            "1208"
            "0000803f000020c0");
}

TEST(Frame, IsAnOrdinaryProtobufMessageToo) {
  const std::string payload = "payload!";
  v1::StreamTensorsRequest message;
  ASSERT_TRUE(message.ParseFromString(Encoded(payload)));
  EXPECT_EQ(message.payload(), payload);
  EXPECT_EQ(message.header().job_id(), "j1");
  EXPECT_EQ(message.header().crc32c(), Crc32c(payload));

  const absl::StatusOr<Frame> frame = DecodeFrame(Arrived(message.SerializeAsString(), 1000));
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(frame->header.SerializeAsString(), message.header().SerializeAsString());
}

TEST(Frame, ComesBackWhateverSlicesTheNetworkCutItInto) {
  std::string payload(1000, '\0');
  std::mt19937 random(3);
  for (char& c : payload) c = static_cast<char>(random());
  const std::string bytes = Encoded(payload);
  for (size_t slice_bytes : {1u, 2u, 3u, 7u, 31u, 64u, 999u, 100'000u}) {
    SCOPED_TRACE(slice_bytes);
    const absl::StatusOr<Frame> frame = DecodeFrame(Arrived(bytes, slice_bytes));
    ASSERT_TRUE(frame.ok()) << frame.status();
    std::string copy(payload.size(), '\0');
    ASSERT_EQ(frame->payload.size(), static_cast<int64_t>(payload.size()));
    EXPECT_EQ(frame->payload.CopyTo(copy.data()), frame->header.crc32c());
    EXPECT_EQ(copy, payload);
  }
}

TEST(Frame, MayCarryNoPayload) {
  v1::TensorHeader header;
  header.set_job_id("j1");
  header.set_kind(v1::MESSAGE_KIND_HELLO);
  const absl::StatusOr<Frame> frame = DecodeFrame(EncodeFrame(header));
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(frame->header.kind(), v1::MESSAGE_KIND_HELLO);
  EXPECT_EQ(frame->payload.size(), 0);
}

TEST(Frame, RefersToThePayloadAndReleasesItOnce) {
  static int released;
  released = 0;
  char payload[256] = {};
  {
    grpc::Slice slice(
        payload, sizeof(payload), [](void*) { ++released; }, nullptr);
    const grpc::ByteBuffer buffer = EncodeFrame(Header(sizeof(payload)), slice);
    std::vector<grpc::Slice> slices;
    ASSERT_TRUE(buffer.Dump(&slices).ok());
    ASSERT_EQ(slices.size(), 2u);
    EXPECT_EQ(slices[1].begin(), reinterpret_cast<const uint8_t*>(payload));
    EXPECT_EQ(released, 0);
  }
  EXPECT_EQ(released, 1);
}

struct BadFrame {
  const char* name;
  std::string bytes;
  const char* message;
};

TEST(Frame, RefusesWhatIsNotAFrame) {
  const std::string good = Encoded("12345678");
  v1::StreamTensorsRequest no_header;
  no_header.set_payload("12345678");
  v1::StreamTensorsRequest wrong_length;
  *wrong_length.mutable_header() = Header(9);
  wrong_length.set_payload("12345678");
  v1::StreamTensorsRequest long_header;
  *long_header.mutable_header() = Header(0);
  long_header.mutable_header()->set_job_id(std::string(5000, 'j'));
  v1::StreamTensorsRequest long_payload;
  *long_payload.mutable_header() = Header(kChunkBytes + 1);
  long_payload.set_payload(std::string(kChunkBytes + 1, 'x'));
  const BadFrame cases[] = {
      {"empty", "", "does not begin with a header"},
      {"no header", no_header.SerializeAsString(), "does not begin with a header"},
      {"header longer than the message", std::string("\x0a\x64\x0a", 3), "cannot be parsed"},
      {"header length without end", std::string(12, '\xff'), "does not begin with a header"},
      {"payload cut short", good.substr(0, good.size() - 1), "7 bytes arrived"},
      {"bytes after the payload", good + "x", "9 bytes arrived"},
      {"a third field", Flatten(EncodeFrame(Header(0))) + std::string("\x1a\x00", 2),
       "no payload after the header"},
      {"length of the header differs", wrong_length.SerializeAsString(),
       "header says length 9, but the payload has 8 bytes"},
      {"long header", long_header.SerializeAsString(), "expected at most 4096"},
      {"long payload", long_payload.SerializeAsString(), "expected at most 1048576"},
      {"negative length",
       [] {
         v1::StreamTensorsRequest m;
         *m.mutable_header() = Header(-1);
         return m.SerializeAsString();
       }(),
       "header says length -1"},
  };
  for (const BadFrame& c : cases) {
    SCOPED_TRACE(c.name);
    const absl::Status status = DecodeFrame(Arrived(c.bytes, 16)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(status.message(), HasSubstr(c.message));
  }
  EXPECT_EQ(DecodeFrame(grpc::ByteBuffer()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Frame, SurvivesRandomBytesAndRandomDamage) {
  google::protobuf::LogSilencer silence;  // one line for each bad UTF-8 job name
  std::mt19937 random(11);
  const std::string good = Encoded(std::string(100, 'p'));
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = good;
    if (round % 2 == 0) {
      bytes.resize(random() % 200);
      for (char& c : bytes) c = static_cast<char>(random());
    } else {
      for (int hits = 0; hits < 3; ++hits)
        bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    const absl::StatusOr<Frame> frame = DecodeFrame(Arrived(bytes, 1 + random() % 50));
    if (!frame.ok()) {
      EXPECT_EQ(frame.status().code(), absl::StatusCode::kInvalidArgument);
    } else {
      EXPECT_LE(frame->payload.size(), static_cast<int64_t>(bytes.size()));
    }
  }
}

TEST(Frame, RefusesTagsNoPlanCanName) {
  v1::TensorHeader header = Header(0);
  EXPECT_EQ(TagOf(header)->micro_batch, 1);
  header.set_micro_batch(-1);
  EXPECT_THAT(TagOf(header).status().message(), HasSubstr("micro_batch -1, expected 0 to"));
  header.set_micro_batch(0);
  header.set_chunk(int64_t{1} << 40);
  EXPECT_THAT(TagOf(header).status().message(), HasSubstr("chunk 1099511627776, expected 0 to"));
  EXPECT_THAT(FromProto(static_cast<v1::ElementType>(9)).status().message(),
              HasSubstr("element type 9, expected 1 (float32)"));
}

TEST(Frame, NamesEveryElementType) {
  for (const ElementType type : {ElementType::kFloat32, ElementType::kInt32, ElementType::kFloat64,
                                 ElementType::kBfloat16}) {
    EXPECT_EQ(*FromProto(ToProto(type)), type);
  }
}

}  // namespace
}  // namespace headrace
