#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "worker/transport/grpc_link.h"
#include "worker/transport/link.h"

namespace headrace {
namespace {

constexpr absl::Duration kWatchEvery = absl::Milliseconds(250);

// The links are const after construction; each one is thread-safe. One thread watches that they
// move.
class GrpcLinks final : public Links {
 public:
  explicit GrpcLinks(std::map<int, std::unique_ptr<GrpcLink>> links)
      : links_(std::move(links)), watch_([this] { Watch(); }) {}
  ~GrpcLinks() override { Close(); }

  absl::Status AwaitOpen(absl::Time deadline) {
    for (const auto& [stage, link] : links_) {
      if (absl::Status open = link->AwaitOpen(deadline); !open.ok()) return open;
    }
    return absl::OkStatus();
  }

  std::vector<v1::LinkInfo> Describe() const override {
    std::vector<v1::LinkInfo> described;
    for (const auto& [stage, link] : links_) described.push_back(link->Describe());
    return described;
  }

  absl::Status Send(int to_stage, Outgoing outgoing, absl::Time deadline) override {
    const auto link = links_.find(to_stage);
    if (link == links_.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("no link to stage ", to_stage, " for ", ToText(outgoing.tag)));
    }
    return link->second->Send(std::move(outgoing), deadline);
  }

  absl::Status Finish(absl::Time deadline) override {
    for (const auto& [stage, link] : links_) link->BeginFinish();
    absl::Status first;
    for (const auto& [stage, link] : links_) first.Update(link->AwaitFinished(deadline));
    return first;
  }

  void Close() override {
    for (const auto& [stage, link] : links_) link->Cancel();
    absl::MutexLock lock(&close_mu_);
    if (!closing_.HasBeenNotified()) closing_.Notify();
    if (watch_.joinable()) watch_.join();
    for (const auto& [stage, link] : links_) link->Join();
  }

 private:
  void Watch() {
    while (!closing_.WaitForNotificationWithTimeout(kWatchEvery)) {
      for (const auto& [stage, link] : links_) link->CancelIfStalled();
    }
  }

  const std::map<int, std::unique_ptr<GrpcLink>> links_;
  absl::Notification closing_;
  absl::Mutex close_mu_;  // two Closes must not join the same threads
  std::thread watch_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Links>> ConnectLinks(
    const LinkContext& context, const std::vector<v1::Peer>& receivers, absl::Time deadline,
    std::function<void(int stage, absl::Status cause)> on_lost, Cancellation* cancellation) {
  std::map<int, std::unique_ptr<GrpcLink>> links;
  for (const v1::Peer& receiver : receivers) {
    links[static_cast<int>(receiver.stage())] =
        std::make_unique<GrpcLink>(context, receiver, deadline, on_lost, cancellation);
  }
  auto connected = std::make_unique<GrpcLinks>(std::move(links));
  const absl::Status open = connected->AwaitOpen(deadline);
  if (open.ok()) return connected;
  if (cancellation != nullptr && cancellation->cancelled()) {
    return absl::CancelledError("told to stop while connecting");
  }
  return open;
}

}  // namespace headrace
