#include <google/protobuf/stubs/common.h>
#include <grpcpp/grpcpp.h>

#include "client/commands/command.h"
#include "client/render/json.h"

namespace headrace {
namespace {

absl::Status Version(const CommandLine& line, const Environment& environment) {
  if (line.format() == Format::kText) {
    *environment.console.out << "headrace " HEADRACE_VERSION "\n";
    return absl::OkStatus();
  }
  const Json json = {
      {"version", HEADRACE_VERSION},
      {"grpc", grpc::Version()},
      {"protobuf", google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION)}};
  *environment.console.out << Print(json, line.format());
  return absl::OkStatus();
}

}  // namespace

void AddVersion(CLI::App* app, CommandLine* line) {
  CLI::App* command = app->add_subcommand("version", "Print the version");
  AddOutputOption(command, line);
  command->callback([line] {
    line->action = [line](const Environment& environment) { return Version(*line, environment); };
  });
}

}  // namespace headrace
