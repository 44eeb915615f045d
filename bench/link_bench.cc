// How fast tensors travel between two processes of this machine. bench/transport.py runs it.
//
//   link_bench KIND BYTES SECONDS
//
// sends tensors of BYTES (a multiple of 1024) for SECONDS and prints one JSON line: GB/s, and CPU
// seconds of both processes a GB. Every receiver ends with the tensor in its own memory. KIND:
//
//   tcp, unix, shm            our links
//   naive                     a protobuf message with a `bytes` field over gRPC, malloc as it comes
//   socket-tcp, socket-unix   write and read, nothing else
//   beat-idle, beat-loaded    round trip of a 1 KiB call on a connection of its own, in ms: alone,
//                             and while tensors of BYTES go to the same process over tcp
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "common/process.h"
#include "worker/transport/dial.h"
#include "worker/transport/loopback.h"

namespace headrace {
namespace {

// What both processes see.
struct Board {
  std::atomic<int64_t> taken;  // tensors
  std::atomic<bool> listening;
  char address[128];
};

// Each side goes round so many tensors of its own, as a stage does, so that no side has its one
// tensor in cache.
constexpr int64_t kTensors = 4;

[[noreturn]] void Die(const std::string& why) {
  std::fprintf(stderr, "link_bench: %s\n", why.c_str());
  _exit(1);
}

void Check(const absl::Status& status) {
  if (!status.ok()) Die(status.ToString());
}

double CpuSeconds(pid_t pid) {
  clockid_t clock = CLOCK_PROCESS_CPUTIME_ID;
  if (pid != 0 && clock_getcpuclockid(pid, &clock) != 0) Die("no CPU clock");
  timespec time;
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void Announce(Board* board, const std::string& address) {
  address.copy(board->address, sizeof(board->address) - 1);
  board->listening = true;
}

std::string UnixName(const char* what) {
  return absl::StrCat("unix:/tmp/headrace-link-bench-", what, "-", getpid());
}

// One side to send with, one to receive with; the receiver's runs in a process of its own, to its
// death.
struct Kind {
  std::function<void(Board*)> receive;
  // Sends one tensor; may return before it has left.
  std::function<std::function<void()>(const std::string& address)> connect;
};

// ---- our links

TestPlan PlanFor(const std::string& kind, int64_t bytes) {
  return {.rows = bytes / 1024, .slots = kTensors, .host = kind == "shm" ? "here" : ""};
}

Tag NumberedTag(int64_t number) {
  return ActivationTag(1 + number / 8, static_cast<int>(number % 8));
}

void TakeTensors(LoopbackStage* stage, Board* board) {
  for (int64_t number = 0;; ++number) {
    if (!stage->inbox().Take(NumberedTag(number), absl::InfiniteFuture()).ok()) return;
    ++board->taken;
  }
}

class LinkSender {
 public:
  LinkSender(const TestPlan& plan, const std::string& address) : plan_(plan), memory_(plan) {
    v1::Peer peer;
    peer.set_stage(1);
    peer.set_worker("receiver");
    peer.set_address(address);
    peer.mutable_host()->set_id(plan.host);
    absl::StatusOr<std::unique_ptr<Links>> links =
        ConnectLinks(TestContext(0, plan), {peer}, Soon(), [](int, absl::Status) {});
    Check(links.status());
    links_ = *std::move(links);
    std::vector<Slot> all;  // untouched memory would all be one page, and in cache
    while (memory_.pool()->free_slots() > 0) {
      all.push_back(*memory_.pool()->Acquire(MemoryKind::kLink));
      std::memset(all.back().data(), 1, static_cast<size_t>(all.back().bytes()));
    }
    if (!plan.host.empty() && links_->Describe()[0].transport() != "shm") Die("no shared memory");
  }
  void operator()() {
    Outgoing outgoing;
    outgoing.tag = NumberedTag(sent_++);
    absl::StatusOr<Slot> slot = memory_.pool()->Acquire(MemoryKind::kLink);
    // Free once gRPC has let go of it, which may be after the credit came back.
    while (!slot.ok()) {
      absl::SleepFor(absl::Microseconds(20));
      slot = memory_.pool()->Acquire(MemoryKind::kLink);
    }
    outgoing.slot = *std::move(slot);
    outgoing.tensor = {outgoing.slot.data(), ElementType::kFloat32, plan_.shape()};
    Check(links_->Send(1, std::move(outgoing), Soon()));
  }

 private:
  const TestPlan plan_;
  TestMemory memory_;
  std::unique_ptr<Links> links_;
  int64_t sent_ = 0;
};

Kind LinkKind(const std::string& kind, int64_t bytes) {
  const TestPlan plan = PlanFor(kind, bytes);
  const std::string listen = kind == "tcp" ? "127.0.0.1:0" : UnixName("link");
  return {[=](Board* board) {
            LoopbackStage stage(listen, plan);
            Announce(board, stage.address());
            TakeTensors(&stage, board);
          },
          [=](const std::string& address) {
            auto sender = std::make_shared<LinkSender>(plan, address);
            return [sender] { (*sender)(); };
          }};
}

// ---- a message with a bytes field, as one would write it

class NaiveService final : public v1::StageService::Service {
 public:
  NaiveService(Board* board, int64_t bytes) : board_(board), tensors_(kTensors * bytes) {}
  grpc::Status StreamTensors(grpc::ServerContext*,
                             grpc::ServerReaderWriter<v1::StreamTensorsResponse,
                                                      v1::StreamTensorsRequest>* stream) override {
    v1::StreamTensorsRequest request;
    while (stream->Read(&request)) {
      const size_t bytes = request.payload().size();
      char* const tensor = tensors_.data() + static_cast<size_t>(board_->taken % kTensors) * bytes;
      std::memcpy(tensor, request.payload().data(), bytes);
      ++board_->taken;
    }
    return grpc::Status::OK;
  }

 private:
  Board* const board_;
  std::vector<char> tensors_;
};

Kind NaiveKind(int64_t bytes) {
  return {[=](Board* board) {
            NaiveService service(board, bytes);
            grpc::ServerBuilder builder;
            int port = 0;
            builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
            builder.SetMaxReceiveMessageSize(-1);
            builder.RegisterService(&service);
            const auto server = builder.BuildAndStart();
            Announce(board, absl::StrCat("127.0.0.1:", port));
            server->Wait();
          },
          [=](const std::string& address) {
            struct Stream {
              std::unique_ptr<v1::StageService::Stub> stub;
              grpc::ClientContext context;
              std::unique_ptr<
                  grpc::ClientReaderWriter<v1::StreamTensorsRequest, v1::StreamTensorsResponse>>
                  calls;
              std::vector<char> tensors;
              int64_t sent = 0;
            };
            auto s = std::make_shared<Stream>();
            s->stub = v1::StageService::NewStub(
                grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
            s->calls = s->stub->StreamTensors(&s->context);
            s->tensors.assign(static_cast<size_t>(kTensors * bytes), 'x');
            return [s, bytes] {
              v1::StreamTensorsRequest request;
              request.mutable_header()->set_kind(v1::MESSAGE_KIND_ACTIVATION);
              request.set_payload(s->tensors.data() + s->sent++ % kTensors * bytes,
                                  static_cast<size_t>(bytes));
              if (!s->calls->Write(request)) Die("the stream broke");
            };
          }};
}

// ---- sockets

void ReadTensors(int fd, int64_t bytes, Board* board) {
  std::vector<char> tensors(static_cast<size_t>(kTensors * bytes));
  for (int64_t number = 0;; ++number) {
    char* const tensor = tensors.data() + number % kTensors * bytes;
    for (int64_t at = 0; at < bytes;) {
      const ssize_t n = read(fd, tensor + at, static_cast<size_t>(bytes - at));
      if (n <= 0) return;
      at += n;
    }
    ++board->taken;
  }
}

Kind SocketKind(bool tcp, int64_t bytes) {
  const std::string path = UnixName("socket").substr(5);
  return {[=](Board* board) {
            sockaddr_in inet = {};
            inet.sin_family = AF_INET;
            inet.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
            sockaddr_un local = {};
            local.sun_family = AF_UNIX;
            path.copy(local.sun_path, sizeof(local.sun_path) - 1);
            sockaddr* const address =
                tcp ? reinterpret_cast<sockaddr*>(&inet) : reinterpret_cast<sockaddr*>(&local);
            socklen_t size = tcp ? sizeof(inet) : sizeof(local);
            const int listener = socket(address->sa_family, SOCK_STREAM, 0);
            if (bind(listener, address, size) != 0 || listen(listener, 1) != 0)
              Die("cannot listen");
            if (tcp) getsockname(listener, address, &size);
            Announce(board, tcp ? absl::StrCat("127.0.0.1:", ntohs(inet.sin_port))
                                : absl::StrCat("unix:", path));
            ReadTensors(accept(listener, nullptr, nullptr), bytes, board);
          },
          [=](const std::string& address) {
            absl::StatusOr<Socket> dialled = Dial(address, Soon(), nullptr);
            Check(dialled.status());
            auto connection = std::make_shared<Socket>(*std::move(dialled));
            if (!tcp) unlink(path.c_str());
            fcntl(connection->fd(), F_SETFL, 0);  // blocking
            auto tensors = std::make_shared<std::vector<char>>(kTensors * bytes, 'x');
            return [connection, tensors, bytes, number = int64_t{0}]() mutable {
              const char* const tensor = tensors->data() + number++ % kTensors * bytes;
              for (int64_t at = 0; at < bytes;) {
                const ssize_t n =
                    write(connection->fd(), tensor + at, static_cast<size_t>(bytes - at));
                if (n <= 0) Die("the connection broke");
                at += n;
              }
            };
          }};
}

// ---- measuring

Kind KindNamed(const std::string& name, int64_t bytes) {
  if (name == "naive") return NaiveKind(bytes);
  if (name == "socket-tcp") return SocketKind(true, bytes);
  if (name == "socket-unix") return SocketKind(false, bytes);
  if (name == "tcp" || name == "unix" || name == "shm") return LinkKind(name, bytes);
  return LinkKind("tcp", bytes);  // beats
}

void AwaitTaken(const Board& board, int64_t count) {
  while (board.taken < count) absl::SleepFor(absl::Microseconds(20));
}

void MeasureSpeed(const Kind& kind, Board* board, pid_t receiver, int64_t bytes, double seconds) {
  const std::function<void()> send = kind.connect(board->address);
  int64_t sent = 0;
  const absl::Time warm = absl::Now() + absl::Seconds(seconds / 4);
  do {
    send();
    ++sent;
  } while (sent < 4 || absl::Now() < warm);
  AwaitTaken(*board, sent);
  const int64_t before = sent;
  const double cpu = CpuSeconds(0) + CpuSeconds(receiver);
  const absl::Time start = absl::Now();
  do {
    send();
    ++sent;
  } while (sent < before + 4 || absl::Now() - start < absl::Seconds(seconds));
  AwaitTaken(*board, sent);
  const double wall = absl::ToDoubleSeconds(absl::Now() - start);
  const double used = CpuSeconds(0) + CpuSeconds(receiver) - cpu;
  const double gb = 1e-9 * static_cast<double>((sent - before) * bytes);
  std::printf("{\"gb_per_s\": %.4f, \"cpu_s_per_gb\": %.4f}\n", gb / wall, used / gb);
}

void MeasureBeats(const Kind& kind, Board* board, bool loaded, double seconds) {
  std::atomic<bool> stop = false;
  std::thread load;
  if (loaded) {
    load = std::thread([&, send = kind.connect(board->address)] {
      while (!stop) send();
    });
  }
  const auto channel = MakeChannel(board->address, ChannelUse::kControl);
  const auto stub = v1::StageService::NewStub(channel);
  std::vector<double> trips;
  const absl::Time end = absl::Now() + absl::Seconds(seconds);
  v1::StopStageRequest request;
  request.set_reason(std::string(1024, 'x'));
  while (absl::Now() < end) {
    grpc::ClientContext context;
    v1::StopStageResponse response;
    const absl::Time start = absl::Now();
    // Not served, which is an answer as well.
    if (stub->StopStage(&context, request, &response).error_code() !=
        grpc::StatusCode::UNIMPLEMENTED) {
      Die("no answer");
    }
    trips.push_back(absl::ToDoubleMilliseconds(absl::Now() - start));
    absl::SleepFor(absl::Milliseconds(5));
  }
  stop = true;
  if (load.joinable()) load.join();
  trips.erase(trips.begin());  // connecting
  std::sort(trips.begin(), trips.end());
  std::printf("{\"median_ms\": %.4f, \"p90_ms\": %.4f, \"max_ms\": %.4f}\n",
              trips[trips.size() / 2], trips[trips.size() * 9 / 10], trips.back());
}

int Main(int argc, char** argv) {
  if (argc != 4) Die("usage: link_bench KIND BYTES SECONDS");
  const std::string name = argv[1];
  const int64_t bytes = std::atoll(argv[2]);
  const double seconds = std::atof(argv[3]);
  if (bytes < 1024 || bytes % 1024 != 0 || seconds <= 0) Die("BYTES or SECONDS is wrong");
  if (name != "naive") TuneMalloc();
  signal(SIGPIPE, SIG_IGN);
  auto* const board = static_cast<Board*>(
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const Kind kind = KindNamed(name, bytes);
  const pid_t receiver = fork();  // before gRPC has threads
  if (receiver == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    kind.receive(board);
    _exit(0);
  }
  while (!board->listening) absl::SleepFor(absl::Milliseconds(1));
  if (name == "beat-idle" || name == "beat-loaded") {
    MeasureBeats(kind, board, name == "beat-loaded", seconds);
  } else {
    MeasureSpeed(kind, board, receiver, bytes, seconds);
  }
  std::fflush(stdout);
  kill(receiver, SIGKILL);
  _exit(0);
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) { return headrace::Main(argc, argv); }
