// A TCP proxy in front of one worker, so that a test can cut the link to it as a pulled cable does
// (nothing arrives any more, nobody is told) or as a reset does.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace headrace {

// Thread-safe.
class Proxy {
 public:
  // Listens on a loopback port and passes each connection on to the unix socket at `target`.
  static absl::StatusOr<std::unique_ptr<Proxy>> Start(const std::string& target);
  ~Proxy();
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  const std::string& address() const { return address_; }  // "127.0.0.1:port"

  enum class Mode {
    kPass,
    kDrop,   // bytes vanish, both ways; connections stay and new ones are taken
    kReset,  // connections end at once, so do new ones
  };
  void Set(Mode mode);

 private:
  // One direction of one connection: what was read and not yet written.
  struct Flow {
    int from = -1, to = -1;
    std::string pending;
    bool ended = false;  // nothing more will be read
  };
  struct Connection {
    Flow there, back;
  };

  Proxy(std::string target, std::string address, int listener, int wake_read, int wake_write);
  void Run();
  void PollOnce(Mode mode);
  void Accept();
  void Read(Flow* flow);
  void Write(Flow* flow);
  void CloseAll();
  static bool Done(const Connection& connection);
  static void Close(const Connection& connection);
  Mode mode();

  const std::string target_;
  const std::string address_;
  const int listener_;
  const int wake_read_, wake_write_;  // a pipe that interrupts poll
  absl::Mutex mu_;
  Mode mode_ ABSL_GUARDED_BY(mu_) = Mode::kPass;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::list<Connection> connections_;  // of the thread
  std::thread thread_;
};

}  // namespace headrace
