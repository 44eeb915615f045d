// What a sender may say wrong, over real gRPC: each is refused by a status that names what came and
// what was expected, and harms no more than the stream it came by.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <functional>
#include <random>

#include "worker/transport/loopback.h"

namespace headrace {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

const TestPlan kPlan = {.rows = 2};  // tensors of 2048 bytes
const std::string kWhole(2048, 'w');

class RefusalTest : public ::testing::Test {
 protected:
  RefusalTest() : stage_("127.0.0.1:0", kPlan, absl::Milliseconds(500)) {}

  // An accepted stream from stage 0.
  std::unique_ptr<RawSender> Greet() {
    auto sender = std::make_unique<RawSender>(stage_.address());
    EXPECT_TRUE(sender->Write(EncodeFrame(TestHeader(v1::MESSAGE_KIND_HELLO))));
    v1::StreamTensorsResponse ack;
    EXPECT_TRUE(sender->ReadAck(&ack));
    EXPECT_EQ(ack.activation_credits(), kPlan.credits);
    EXPECT_EQ(ack.gradient_credits(), kPlan.credits);
    return sender;
  }

  // The stream ends with `code` and `text`; so do the stage's waits for the sender.
  void ExpectRefused(RawSender* sender, absl::StatusCode code, const std::string& text) {
    const absl::Status said = sender->Finish();
    EXPECT_EQ(said.code(), code) << said;
    EXPECT_THAT(std::string(said.message()), HasSubstr(text));
    const absl::Status taken = stage_.inbox().Take(ActivationTag(9, 7), Soon()).status();
    EXPECT_EQ(taken.code(), code) << taken;
    EXPECT_THAT(std::string(taken.message()), HasSubstr("stream from stage 0"));
    EXPECT_THAT(std::string(taken.message()), HasSubstr(text));
    EXPECT_EQ(stage_.pool()->free_slots(), kPlan.slots) << "a refused tensor keeps no memory";
  }

  // A stream from stage 0 still does its work.
  void ExpectUnharmed(RawSender* sender) {
    ASSERT_TRUE(sender->Write(WholeHeader(kPlan, kWhole, 1, 0), kWhole));
    const absl::StatusOr<Received> got = stage_.inbox().Take(ActivationTag(1, 0), Soon());
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(std::string(static_cast<char*>(got->tensor.data), kWhole.size()), kWhole);
  }

  LoopbackStage stage_;
};

struct BadFrame {
  const char* name;
  std::function<void(v1::TensorHeader*)> change;
  absl::StatusCode code;
  const char* text;
  std::string payload = kWhole;
};

const BadFrame kBadFrames[] = {
    {"WrongJob", [](auto* h) { h->set_job_id("j2"); }, absl::StatusCode::kFailedPrecondition,
     "frame for job j2 generation 3, expected job j1 generation 3"},
    {"OldGeneration", [](auto* h) { h->set_generation(2); }, absl::StatusCode::kFailedPrecondition,
     "frame for job j1 generation 2, expected job j1 generation 3"},
    {"WrongFromStage", [](auto* h) { h->set_from_stage(2); }, absl::StatusCode::kInvalidArgument,
     "frame from stage 2 in a stream from stage 0"},
    {"WrongMicroBatch", [](auto* h) { h->set_micro_batch(8); }, absl::StatusCode::kInvalidArgument,
     "activation of step 1, micro-batch 8, from stage 0: expected micro-batch 0 to 7"},
    {"NegativeMicroBatch", [](auto* h) { h->set_micro_batch(-1); },
     absl::StatusCode::kInvalidArgument, "micro_batch -1, expected 0 to"},
    {"UnexpectedKind", [](auto* h) { h->set_kind(v1::MESSAGE_KIND_TOKEN); },
     absl::StatusCode::kInvalidArgument, "token of step 1, from stage 0: not expected by stage 1"},
    {"UnknownKind", [](auto* h) { h->set_kind(static_cast<v1::MessageKind>(77)); },
     absl::StatusCode::kInvalidArgument, "frame of kind message kind 77, expected a tensor or END"},
    {"SecondHello", [](auto* h) { h->set_kind(v1::MESSAGE_KIND_HELLO); },
     absl::StatusCode::kInvalidArgument, "frame of kind hello, expected a tensor or END"},
    {"WrongType", [](auto* h) { h->set_element_type(v1::ELEMENT_TYPE_INT32); },
     absl::StatusCode::kInvalidArgument, "int32 [2, 256] arrived, expected float32 [2, 256]"},
    {"UnknownType", [](auto* h) { h->set_element_type(static_cast<v1::ElementType>(9)); },
     absl::StatusCode::kInvalidArgument, "element type 9, expected 1 (float32)"},
    {"WrongShape", [](auto* h) { h->set_shape(0, 4); }, absl::StatusCode::kInvalidArgument,
     "float32 [4, 256] arrived, expected float32 [2, 256]"},
    {"NoShape", [](auto* h) { h->clear_shape(); }, absl::StatusCode::kInvalidArgument,
     "float32 [] arrived, expected float32 [2, 256]"},
    {"HostileShape",
     [](auto* h) {
       h->set_shape(0, int64_t{1} << 62);
       h->set_shape(1, int64_t{1} << 62);
     },
     absl::StatusCode::kInvalidArgument,
     "float32 [4611686018427387904, 4611686018427387904] arrived"},
    {"NegativeShape", [](auto* h) { h->set_shape(0, -2); }, absl::StatusCode::kInvalidArgument,
     "float32 [-2, 256] arrived, expected float32 [2, 256]"},
    {"WrongSize", [](auto* h) { h->set_total_bytes(2044); }, absl::StatusCode::kInvalidArgument,
     "total_bytes 2044, expected 2048"},
    {"HostileSize", [](auto* h) { h->set_total_bytes(int64_t{1} << 60); },
     absl::StatusCode::kInvalidArgument, "total_bytes 1152921504606846976, expected 2048"},
    {"FirstOffsetNotZero", [](auto* h) { h->set_offset(8); }, absl::StatusCode::kInvalidArgument,
     "offset 8, expected 0"},
    {"NegativeOffset", [](auto* h) { h->set_offset(-8); }, absl::StatusCode::kInvalidArgument,
     "offset -8, expected 0"},
    {"LengthUnlikePayload", [](auto* h) { h->set_length(2047); },
     absl::StatusCode::kInvalidArgument, "header says length 2047, but the payload has 2048 bytes"},
    {"PayloadLongerThanTensor", [](auto* h) {}, absl::StatusCode::kInvalidArgument,
     "length 2052, expected 1 to 2048", std::string(2052, 'w')},
    {"EmptyPayload", [](auto* h) {}, absl::StatusCode::kInvalidArgument,
     "length 0, expected 1 to 2048", ""},
    {"BadChecksum", [](auto* h) { h->set_crc32c(h->crc32c() ^ 1); }, absl::StatusCode::kDataLoss,
     "bytes 0 to 2048 have checksum "},
    {"EndWithPayload", [](auto* h) { h->set_kind(v1::MESSAGE_KIND_END); },
     absl::StatusCode::kInvalidArgument, "END with a payload"},
};

class BadFrameTest : public RefusalTest, public ::testing::WithParamInterface<BadFrame> {};
INSTANTIATE_TEST_SUITE_P(AFrameWith, BadFrameTest, ::testing::ValuesIn(kBadFrames),
                         [](const auto& info) { return info.param.name; });

TEST_P(BadFrameTest, EndsTheStreamAndTheWaitsForItsSender) {
  const BadFrame& bad = GetParam();
  std::unique_ptr<RawSender> sender = Greet();
  v1::TensorHeader header = WholeHeader(kPlan, bad.payload);
  bad.change(&header);
  sender->Write(header, bad.payload);
  ExpectRefused(sender.get(), bad.code, bad.text);
}

// The first half of micro-batch 0's tensor, then what a row says.
class SecondFrameTest : public RefusalTest {
 protected:
  std::unique_ptr<RawSender> GreetAndSendHalf() {
    std::unique_ptr<RawSender> sender = Greet();
    EXPECT_TRUE(sender->Write(Half(0), half_));
    return sender;
  }
  v1::TensorHeader Half(int64_t offset) const {
    v1::TensorHeader header = WholeHeader(kPlan, half_);
    header.set_offset(offset);
    return header;
  }
  const std::string half_ = std::string(1024, 'h');
};

TEST_F(SecondFrameTest, AGapBetweenFramesIsRefused) {
  auto sender = GreetAndSendHalf();
  sender->Write(Half(1028), half_);
  ExpectRefused(sender.get(), absl::StatusCode::kInvalidArgument, "offset 1028, expected 1024");
}

TEST_F(SecondFrameTest, AnOverlapOfFramesIsRefused) {
  auto sender = GreetAndSendHalf();
  sender->Write(Half(1020), half_);
  ExpectRefused(sender.get(), absl::StatusCode::kInvalidArgument, "offset 1020, expected 1024");
}

TEST_F(SecondFrameTest, AnotherTensorInBetweenIsRefused) {
  auto sender = GreetAndSendHalf();
  v1::TensorHeader header = Half(1024);
  header.set_micro_batch(1);
  sender->Write(header, half_);
  ExpectRefused(sender.get(), absl::StatusCode::kInvalidArgument,
                "frame of activation of step 1, micro-batch 1, from stage 0, expected byte 1024 of "
                "activation of step 1, micro-batch 0");
}

TEST_F(SecondFrameTest, AShapeThatChangesIsRefused) {
  auto sender = GreetAndSendHalf();
  v1::TensorHeader header = Half(1024);
  header.set_shape(0, 256);
  header.set_shape(1, 2);
  sender->Write(header, half_);
  ExpectRefused(sender.get(), absl::StatusCode::kInvalidArgument,
                "type or shape differs from the tensor's first frame");
}

TEST_F(SecondFrameTest, EndInsideATensorIsRefused) {
  auto sender = GreetAndSendHalf();
  sender->Write(EncodeFrame(TestHeader(v1::MESSAGE_KIND_END)));
  ExpectRefused(sender.get(), absl::StatusCode::kInvalidArgument, "END at byte 1024 of 2048");
}

TEST_F(SecondFrameTest, AStreamCutInsideATensorKeepsNoMemory) {
  auto sender = GreetAndSendHalf();
  sender->WritesDone();
  ExpectRefused(sender.get(), absl::StatusCode::kUnavailable, "the stream broke before its END");
}

TEST_F(RefusalTest, ATagThatCameBeforeIsRefused) {
  auto sender = Greet();
  ExpectUnharmed(sender.get());
  sender->Write(WholeHeader(kPlan, kWhole, 1, 0), kWhole);
  ExpectRefused(sender.get(), absl::StatusCode::kAlreadyExists,
                "activation of step 1, micro-batch 0, from stage 0: was taken before");
}

TEST_F(RefusalTest, ASenderThatIgnoresItsCreditsIsRefused) {
  auto sender = Greet();
  for (int mb = 0; mb <= kPlan.credits; ++mb) {
    sender->Write(WholeHeader(kPlan, kWhole, 1, mb), kWhole);
  }
  ExpectRefused(sender.get(), absl::StatusCode::kResourceExhausted,
                "micro-batch 2, from stage 0: sent without a credit, 2 tensors of 2 credits");
}

TEST_F(RefusalTest, AFrameAfterEndIsRefused) {
  auto sender = Greet();
  sender->Write(EncodeFrame(TestHeader(v1::MESSAGE_KIND_END)));
  sender->Write(EncodeFrame(TestHeader(v1::MESSAGE_KIND_END)));
  ExpectRefused(sender.get(), absl::StatusCode::kInvalidArgument, "a frame after END");
}

TEST_F(RefusalTest, GarbageInsteadOfAFrameIsRefused) {
  auto sender = Greet();
  sender->Write(std::string("no protobuf, this"));
  ExpectRefused(sender.get(), absl::StatusCode::kInvalidArgument, "does not begin with a header");
}

TEST_F(RefusalTest, ImpostorsAreRefusedAtHelloAndHarmNobody) {
  auto rightful = Greet();
  struct Impostor {
    std::function<void(v1::TensorHeader*)> change;
    absl::StatusCode code;
    const char* text;
  };
  const Impostor impostors[] = {
      {[](auto* h) { h->set_job_id("j9"); }, absl::StatusCode::kFailedPrecondition,
       "hello for job j9 generation 3, but here is job j1 generation 3"},
      {[](auto* h) { h->set_generation(2); }, absl::StatusCode::kFailedPrecondition,
       "hello for job j1 generation 2, but here is job j1 generation 3"},
      {[](auto* h) { h->set_from_stage(1); }, absl::StatusCode::kInvalidArgument,
       "hello from stage 1 to stage 1, expected another stage"},
      {[](auto* h) { h->set_from_stage(-1); }, absl::StatusCode::kInvalidArgument,
       "hello from stage -1 to stage 1"},
      {[](auto* h) {}, absl::StatusCode::kAlreadyExists, "has its stream from stage 0 already"},
      {[](auto* h) { h->set_kind(v1::MESSAGE_KIND_ACTIVATION); },
       absl::StatusCode::kInvalidArgument, "first frame of kind activation, expected hello"},
  };
  for (const Impostor& impostor : impostors) {
    SCOPED_TRACE(impostor.text);
    RawSender sender(stage_.address());
    v1::TensorHeader hello = TestHeader(v1::MESSAGE_KIND_HELLO);
    impostor.change(&hello);
    sender.Write(EncodeFrame(hello));
    const absl::Status status = sender.Finish();
    EXPECT_EQ(status.code(), impostor.code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(impostor.text));
  }
  ExpectUnharmed(rightful.get());
}

TEST_F(RefusalTest, AStreamThatNeverSaysHelloIsEnded) {
  auto rightful = Greet();
  RawSender silent(stage_.address());
  EXPECT_EQ(silent.Finish().code(), absl::StatusCode::kCancelled);
  ExpectUnharmed(rightful.get());
}

void SendGarbage(int port, const std::string& bytes) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  // The server may hang up at any byte; what matters is that it lives.
  (void)send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  shutdown(fd, SHUT_WR);
  char answer[4096];
  while (recv(fd, answer, sizeof(answer), 0) > 0) {
  }
  close(fd);
}

TEST_F(RefusalTest, RandomBytesOnThePortHarmNobody) {
  auto rightful = Greet();
  std::mt19937 random(5);
  const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  for (int round = 0; round < 20; ++round) {
    std::string bytes(1 + random() % 5000, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    SendGarbage(stage_.port(), round % 2 == 0 ? bytes : preface + bytes);
  }
  SendGarbage(stage_.port(), "GET / HTTP/1.1\r\nHost: headrace\r\n\r\n");
  ExpectUnharmed(rightful.get());
}

TEST_F(RefusalTest, RandomMessagesHarmNobody) {
  google::protobuf::LogSilencer silence;  // a line for each bad UTF-8 name
  auto rightful = Greet();
  std::mt19937 random(6);
  const std::string good = [] {
    v1::StreamTensorsRequest message;
    *message.mutable_header() = TestHeader(v1::MESSAGE_KIND_HELLO);
    message.mutable_header()->set_from_stage(2);
    return message.SerializeAsString();
  }();
  for (int round = 0; round < 60; ++round) {
    std::string bytes = good;
    if (round % 2 == 0) {
      bytes.resize(random() % 300);
      for (char& c : bytes) c = static_cast<char>(random());
    } else {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    RawSender sender(stage_.address());
    sender.Write(bytes);
    sender.WritesDone();
    EXPECT_THAT(sender.Finish().code(),
                AnyOf(absl::StatusCode::kInvalidArgument, absl::StatusCode::kFailedPrecondition,
                      absl::StatusCode::kAlreadyExists, absl::StatusCode::kUnavailable));
  }
  ExpectUnharmed(rightful.get());
}

}  // namespace
}  // namespace headrace
