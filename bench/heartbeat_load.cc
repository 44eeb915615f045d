// Many workers' registrations and heartbeats, without the workers: what bench/cost_of_scale.py puts
// on a coordinator. Prints "ready" once all are registered and have beaten once, then, after
// --seconds, one line of JSON.
#include <grpcpp/grpcpp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/channel.h"
#include "headrace/v1/worker.grpc.pb.h"

namespace headrace {
namespace {

using Stub = v1::WorkerRegistryService::Stub;

struct Flags {
  std::string coordinator;
  int workers = 1000, channels = 16;
  double seconds = 20;
};

// One heartbeat on its way.
struct Beat {
  grpc::ClientContext context;
  v1::HeartbeatResponse response;
  grpc::Status status;
  absl::Time sent;
  std::unique_ptr<grpc::ClientAsyncResponseReader<v1::HeartbeatResponse>> reader;
};

class Load {
 public:
  explicit Load(const Flags& flags) : flags_(flags) {
    for (int i = 0; i < flags.channels; ++i) {
      // A pool of their own: else all channels to one address share a connection.
      channels_.push_back(MakeChannel(flags.coordinator, ChannelUse::kBlobs));
      stubs_.push_back(v1::WorkerRegistryService::NewStub(channels_.back()));
    }
    numbers_.resize(flags.workers);
  }

  bool Register() {
    for (int i = 0; i < flags_.workers; ++i) {
      v1::RegisterWorkerRequest request;
      v1::WorkerInfo* info = request.mutable_worker();
      info->set_name(Name(i));
      info->set_instance(Name(i));
      info->set_address("127.0.0.1:1");
      info->set_device("cpu");
      info->set_memory_limit_bytes(int64_t{1} << 30);
      info->set_threads(1);
      grpc::ClientContext context;
      v1::RegisterWorkerResponse response;
      const grpc::Status status = StubOf(i).RegisterWorker(&context, request, &response);
      if (!status.ok()) {
        std::cerr << "heartbeat_load: " << status.error_message() << "\n";
        return false;
      }
      // Registering takes a while: those that wait keep their lease.
      if (i % 100 == 99) BeatAll(i);
    }
    return true;
  }

  // Every worker beats as often as the coordinator's last answer said, evenly spread over that.
  void Run() {
    std::thread drain([this] { Drain(); });
    const absl::Time start = absl::Now();
    int64_t beats = 0;
    for (absl::Time due = start; due < start + absl::Seconds(flags_.seconds);) {
      if (const absl::Duration early = due - absl::Now(); early > absl::ZeroDuration()) {
        absl::SleepFor(early);
      }
      Send(static_cast<int>(beats++ % flags_.workers));
      if (beats == flags_.workers) std::cout << "ready" << std::endl;
      due += absl::Milliseconds(next_ms_.load()) / flags_.workers;
    }
    while (answered_ < beats) absl::SleepFor(absl::Milliseconds(1));
    queue_.Shutdown();
    drain.join();
    Print(beats, absl::Now() - start);
  }

 private:
  static std::string Name(int i) { return absl::StrCat("fake-", i); }
  Stub& StubOf(int i) { return *stubs_[i % stubs_.size()]; }

  v1::HeartbeatRequest Request(int i) {
    v1::HeartbeatRequest request;
    request.set_worker(Name(i));
    request.set_instance(Name(i));
    request.set_number(++numbers_[i]);
    return request;
  }

  void BeatAll(int last) {
    for (int i = 0; i <= last; ++i) {
      grpc::ClientContext context;
      v1::HeartbeatResponse response;
      StubOf(i).Heartbeat(&context, Request(i), &response);
    }
  }

  void Send(int i) {
    auto* beat = new Beat;  // Drain deletes it
    beat->sent = absl::Now();
    beat->context.set_deadline(absl::ToChronoTime(beat->sent + absl::Seconds(2)));
    beat->reader = StubOf(i).AsyncHeartbeat(&beat->context, Request(i), &queue_);
    beat->reader->Finish(&beat->response, &beat->status, beat);
  }

  void Drain() {
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
      const std::unique_ptr<Beat> beat(static_cast<Beat*>(tag));
      if (!beat->status.ok()) ++failed_;
      if (beat->response.next_ms() > 0) next_ms_ = beat->response.next_ms();
      took_ms_.push_back(absl::ToDoubleMilliseconds(absl::Now() - beat->sent));
      ++answered_;
    }
  }

  void Print(int64_t beats, absl::Duration took) {
    std::sort(took_ms_.begin(), took_ms_.end());
    std::cout << nlohmann::json{{"workers", flags_.workers},
                                {"channels", flags_.channels},
                                {"beats_per_second",
                                 static_cast<double>(beats) / absl::ToDoubleSeconds(took)},
                                {"failed", failed_},
                                {"median_ms", took_ms_[took_ms_.size() / 2]},
                                {"p99_ms", took_ms_[took_ms_.size() * 99 / 100]}}
              << std::endl;
  }

  const Flags flags_;
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
  std::vector<std::unique_ptr<Stub>> stubs_;
  std::vector<uint64_t> numbers_;  // of each worker's last heartbeat
  grpc::CompletionQueue queue_;
  std::atomic<int64_t> answered_ = 0;
  std::atomic<int64_t> next_ms_ = 500;
  // The drain's own until it is joined.
  int64_t failed_ = 0;
  std::vector<double> took_ms_;
};

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Registers fake workers with a coordinator and sends their heartbeats.");
  app.add_option("--coordinator", flags.coordinator, "Address")->required();
  app.add_option("--workers", flags.workers, "How many")->check(CLI::Range(1, 4096));
  app.add_option("--channels", flags.channels, "Connections they share")
      ->check(CLI::Range(1, 4096));
  app.add_option("--seconds", flags.seconds, "How long to beat");
  CLI11_PARSE(app, argc, argv);
  Load load(flags);
  if (!load.Register()) return 1;
  load.Run();
  return 0;
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) { return headrace::Main(argc, argv); }
