// An NCCL of which only as much exists as a NcclEdge needs: two ranks over a Unix socket. Built as
// a library of its own, named by HEADRACE_NCCL. A lost peer is not reported, as the real one may
// fail to: whoever waits for it waits until ncclCommAbort. The environment says what goes wrong:
//
//   FAKE_NCCL_VERSION=21300      what ncclGetVersion says
//   FAKE_NCCL_FAIL=ncclSend      this call is refused
//   FAKE_NCCL_LATE=ncclSend      this call is refused later, as an asynchronous error
//   FAKE_NCCL_HANG=ncclSend      this call never ends; ncclCommAbort too can be named
//   FAKE_NCCL_AFTER=1            but this many calls of a kind go well before
//   FAKE_NCCL_CORRUPT=1          what is received is wrong
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>

namespace {

constexpr int kSuccess = 0, kInternalError = 3, kInvalidUsage = 5, kInProgress = 7;
constexpr int kLookMs = 2;

struct Id {
  char internal[128];
};

std::string Setting(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}
bool Is(const char* name, const char* call) { return Setting(name) == call; }

// Whether this call of a kind is one that goes well whatever is set.
bool GoesWell(const char* call) {
  static auto* mu = new std::mutex;
  static auto* calls = new std::map<std::string, int>;
  const std::lock_guard<std::mutex> lock(*mu);
  return ++(*calls)[call] <= std::atoi(Setting("FAKE_NCCL_AFTER").c_str());
}

std::mutex ids_mu;
std::map<std::string, int>& Listeners() {
  static auto* map = new std::map<std::string, int>;
  return *map;
}

sockaddr_un AddressOf(const Id& id) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, id.internal, 32);
  return address;
}
constexpr socklen_t kAddressBytes = sizeof(sa_family_t) + 1 + 32;

}  // namespace

struct ncclComm {
  int rank = 0;
  int socket = -1;
  std::atomic<int> error{kInProgress};
  std::atomic<bool> aborted{false};
  std::mutex mu;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  bool idle = true;
  std::thread thread;

  ncclComm() {
    thread = std::thread([this] { Run(); });
  }
  void Run() {
    for (;;) {
      std::function<void()> next;
      {
        std::unique_lock<std::mutex> lock(mu);
        idle = work.empty();
        if (idle && error == kInProgress) error = kSuccess;
        changed.wait(lock, [this] { return aborted || !work.empty(); });
        if (aborted) return;
        next = std::move(work.front());
        work.pop_front();
      }
      next();
    }
  }
  int Put(const char* call, std::function<void()> what) {
    const bool well = GoesWell(call);
    if (!well && Is("FAKE_NCCL_FAIL", call)) return kInvalidUsage;
    const std::lock_guard<std::mutex> lock(mu);
    error = kInProgress;
    if (!well && Is("FAKE_NCCL_LATE", call)) {
      work.push_back([this] { error = kInternalError; });
    } else if (!well && Is("FAKE_NCCL_HANG", call)) {
      work.push_back([this] { Sleep(); });
    } else {
      work.push_back(std::move(what));
    }
    changed.notify_all();
    return kInProgress;
  }
  void Sleep() {
    while (!aborted) std::this_thread::sleep_for(std::chrono::milliseconds(kLookMs));
  }
  // False: aborted. A peer that is gone is waited for.
  bool Await(int fd, short events) {
    while (!aborted) {
      pollfd wait = {.fd = fd, .events = events, .revents = 0};
      if (poll(&wait, 1, kLookMs) > 0) return true;
    }
    return false;
  }
  void Connect(const Id& id) {
    const sockaddr_un address = AddressOf(id);
    while (!aborted) {
      const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (connect(fd, reinterpret_cast<const sockaddr*>(&address), kAddressBytes) == 0) {
        socket = fd;
        char accepted = 0;  // the system connects before the other end has asked for it
        if (Await(fd, POLLIN) && recv(fd, &accepted, 1, 0) != 1) Sleep();
        return;
      }
      close(fd);
      std::this_thread::sleep_for(std::chrono::milliseconds(kLookMs));
    }
  }
  void Accept(const Id& id) {
    int listener = -1;
    {
      const std::lock_guard<std::mutex> lock(ids_mu);
      const auto found = Listeners().extract(std::string(id.internal, 32));
      if (found) listener = found.mapped();
    }
    if (listener < 0) return Sleep();
    if (Await(listener, POLLIN)) socket = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket >= 0 && send(socket, "!", 1, MSG_NOSIGNAL) != 1) Sleep();
    close(listener);
  }
  void Send(const char* data, size_t bytes) {
    while (bytes > 0 && Await(socket, POLLOUT)) {
      const ssize_t sent = send(socket, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno != EAGAIN) return Sleep();
      if (sent > 0) data += sent, bytes -= static_cast<size_t>(sent);
    }
  }
  void Receive(char* data, size_t bytes) {
    char* const all = data;
    while (bytes > 0 && Await(socket, POLLIN)) {
      const ssize_t got = recv(socket, data, bytes, MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno != EAGAIN)) return Sleep();
      if (got > 0) data += got, bytes -= static_cast<size_t>(got);
    }
    if (data > all && !Setting("FAKE_NCCL_CORRUPT").empty()) *all ^= 1;
  }
};

extern "C" {

int ncclGetVersion(int* version) {
  const std::string set = Setting("FAKE_NCCL_VERSION");
  *version = set.empty() ? 22809 : std::atoi(set.c_str());
  return kSuccess;
}
const char* ncclGetErrorString(int result) {
  return result == kInvalidUsage ? "invalid usage" : "internal error";
}
const char* ncclGetLastError(ncclComm*) { return "the fake was told to"; }

int ncclGetUniqueId(Id* id) {
  if (Is("FAKE_NCCL_FAIL", "ncclGetUniqueId")) return kInternalError;
  std::memset(id, 0, sizeof(*id));
  unsigned long long random = 0;
  if (getrandom(&random, sizeof(random), 0) < 0) return kInternalError;
  std::snprintf(id->internal, sizeof(id->internal), "nccl-%08d-%016llx", getpid() % 100000000,
                random);
  const sockaddr_un address = AddressOf(*id);
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(listener, reinterpret_cast<const sockaddr*>(&address), kAddressBytes) != 0 ||
      listen(listener, 1) != 0) {
    return kInternalError;
  }
  const std::lock_guard<std::mutex> lock(ids_mu);
  Listeners()[std::string(id->internal, 32)] = listener;
  return kSuccess;
}

int ncclCommInitRankConfig(ncclComm** communicator, int ranks, Id id, int rank, void*) {
  if (ranks != 2 || Is("FAKE_NCCL_FAIL", "ncclCommInitRankConfig")) return kInvalidUsage;
  auto* made = new ncclComm;
  made->rank = rank;
  *communicator = made;
  return made->Put("ncclCommInitRankConfig", [made, id] {
    if (made->rank == 0) {
      made->Connect(id);
    } else {
      made->Accept(id);
    }
  });
}
int ncclCommGetAsyncError(ncclComm* communicator, int* error) {
  *error = communicator->error;
  return kSuccess;
}
int ncclCommAbort(ncclComm* communicator) {
  if (Is("FAKE_NCCL_HANG", "ncclCommAbort")) {
    for (;;) pause();
  }
  {
    const std::lock_guard<std::mutex> lock(communicator->mu);
    communicator->aborted = true;
    communicator->changed.notify_all();
  }
  communicator->thread.join();
  if (communicator->socket >= 0) close(communicator->socket);
  delete communicator;
  return kSuccess;
}
int ncclSend(const void* data, size_t count, int, int, ncclComm* communicator, void*) {
  return communicator->Put("ncclSend",
                           [=] { communicator->Send(static_cast<const char*>(data), count); });
}
int ncclRecv(void* data, size_t count, int, int, ncclComm* communicator, void*) {
  return communicator->Put("ncclRecv",
                           [=] { communicator->Receive(static_cast<char*>(data), count); });
}

}  // extern "C"
