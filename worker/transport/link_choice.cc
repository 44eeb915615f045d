#include "worker/transport/link_choice.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace headrace {

void AddReason(const std::string& reason, std::string* reasons) {
  if (reason.empty()) return;
  absl::StrAppend(reasons, reasons->empty() ? "" : "; ", reason);
}

std::string TransportName(v1::Transport transport) {
  if (transport == v1::TRANSPORT_UNSPECIFIED) return "auto";
  return absl::AsciiStrToLower(absl::StripPrefix(v1::Transport_Name(transport), "TRANSPORT_"));
}

DevicePaths ChooseDevicePaths(v1::Transport transport, const LinkEnd& sender,
                              const LinkEnd& receiver) {
  const bool any = transport == v1::TRANSPORT_UNSPECIFIED || transport == v1::TRANSPORT_AUTO;
  const bool wants_ipc = any || transport == v1::TRANSPORT_CUDA_IPC;
  const bool wants_nccl = any || transport == v1::TRANSPORT_NCCL;
  DevicePaths paths;
  if (!wants_ipc && !wants_nccl) return paths;
  if (sender.device.empty() || receiver.device.empty()) {
    const bool neither = sender.device.empty() && receiver.device.empty();
    if (neither && any) return paths;
    paths.why_not = neither                 ? "neither stage is on a CUDA device"
                    : sender.device.empty() ? "the sender's tensors lie in host memory"
                                            : "the receiver's tensors lie in host memory";
    return paths;
  }
  paths.cuda_ipc = wants_ipc && !sender.host.empty() && sender.host == receiver.host;
  paths.nccl = wants_nccl && sender.device != receiver.device;
  if (wants_ipc && !paths.cuda_ipc) {
    AddReason("cuda_ipc: the workers are on different hosts", &paths.why_not);
  }
  if (wants_nccl && !paths.nccl) AddReason("nccl: both stages are on one GPU", &paths.why_not);
  return paths;
}

}  // namespace headrace
