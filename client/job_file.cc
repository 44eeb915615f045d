#include "client/job_file.h"

#include <fnmatch.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "client/job_yaml.h"
#include "common/file.h"
#include "common/status.h"
#include "plan/job_check.h"
#include "plan/layer_spec.h"
#include "plan/model.h"

namespace headrace {
namespace {

absl::Status CheckReadable(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": no such job file"));
  }
  if (!std::filesystem::is_regular_file(status)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": not a file; expected a job file in YAML"));
  }
  const auto size = std::filesystem::file_size(path, error);
  if (!error && size > static_cast<uintmax_t>(kMaxJobFileBytes)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %d bytes; expected a job file of at most %d bytes", path, size, kMaxJobFileBytes));
  }
  return absl::OkStatus();
}

// A glob that matches nothing is a slip of the pen, and would be ignored in silence.
absl::Status CheckGroupsMatch(const v1::JobSpec& spec) {
  HEADRACE_ASSIGN_OR_RETURN(const Model model, ResolveModel(spec.model()));
  const std::vector<LayerSpec> layers = BuildLayers(model);
  const auto matches = [&](const std::string& glob) {
    return std::any_of(layers.begin(), layers.end(), [&](const LayerSpec& layer) {
      return std::any_of(layer.parameters.begin(), layer.parameters.end(), [&](const auto& each) {
        return fnmatch(glob.c_str(), each.name.c_str(), 0) == 0;
      });
    });
  };
  for (int i = 0; i < spec.training().optimizer().groups_size(); ++i) {
    const std::string& glob = spec.training().optimizer().groups(i).match();
    if (matches(glob)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("training.optimizer.groups[", i, "].match: \"", glob,
                     "\" matches no parameter; expected a glob over names such as ",
                     layers[1].parameters[0].name));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status JobFile::Locate(const absl::Status& status) const {
  if (status.ok()) return status;
  const absl::string_view message = status.message();
  std::string key(message.substr(0, message.find(": ")));
  int line = 1;
  while (!key.empty()) {
    if (auto it = lines.find(key); it != lines.end()) {
      line = it->second;
      break;
    }
    const size_t cut = key.find_last_of(".[");
    key.resize(cut == std::string::npos ? 0 : cut);
  }
  return absl::InvalidArgumentError(absl::StrCat(path, ":", line, ": ", message));
}

std::string JobFile::Resolve(absl::string_view relative) const {
  return (std::filesystem::path(path).parent_path() / std::string(relative)).string();
}

absl::StatusOr<JobFile> ReadJobFile(const std::string& path) {
  HEADRACE_RETURN_IF_ERROR(CheckReadable(path));
  absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return absl::InvalidArgumentError(text.status().message());
  return ParseJobFile(*text, path);
}

absl::StatusOr<JobFile> ParseJobFile(const std::string& text, const std::string& path) {
  if (text.size() > static_cast<size_t>(kMaxJobFileBytes)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %d bytes; expected a job file of at most %d bytes", path, text.size(),
                        kMaxJobFileBytes));
  }
  JobFile file;
  file.path = path;
  HEADRACE_RETURN_IF_ERROR(ParseJobYaml(text, path, &file.spec, &file.lines));
  HEADRACE_RETURN_IF_ERROR(file.Locate(ValidateJob(file.spec)));
  HEADRACE_RETURN_IF_ERROR(file.Locate(CheckGroupsMatch(file.spec)));
  return file;
}

}  // namespace headrace
