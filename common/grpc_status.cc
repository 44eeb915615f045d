#include "common/grpc_status.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace headrace {
namespace {

// "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:7070: Failed to connect
// to remote host: Connection refused" says no more than "10.0.0.1:7070: Connection refused".
std::string WithoutNoise(absl::string_view message) {
  if (!absl::ConsumePrefix(&message, "failed to connect to all addresses; last error: ")) {
    return std::string(message);
  }
  for (const char* prefix : {"UNKNOWN: ", "UNAVAILABLE: ", "ipv4:"}) {
    absl::ConsumePrefix(&message, prefix);
  }
  constexpr absl::string_view kNoSettings =
      ": connection attempt timed out before receiving SETTINGS frame";
  if (absl::ConsumeSuffix(&message, kNoSettings)) return absl::StrCat(message, ": no answer");
  constexpr absl::string_view kRemote = ": Failed to connect to remote host: ";
  const size_t at = message.find(kRemote);
  if (at == absl::string_view::npos) return std::string(message);
  return absl::StrCat(message.substr(0, at), ": ", message.substr(at + kRemote.size()));
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.raw_code()),
                      std::string(status.message()));
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      WithoutNoise(status.error_message()));
}

}  // namespace headrace
