#include "client/job_file.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "client/job_yaml.h"
#include "common/file.h"
#include "common/status.h"
#include "plan/job_check.h"

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
        "%s: %d bytes; expected a job file of at most %d", path, size, kMaxJobFileBytes));
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
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %d bytes; expected a job file of at most %d", path, text.size(), kMaxJobFileBytes));
  }
  JobFile file;
  file.path = path;
  HEADRACE_RETURN_IF_ERROR(ParseJobYaml(text, path, &file.spec, &file.lines));
  HEADRACE_RETURN_IF_ERROR(file.Locate(ValidateJob(file.spec)));
  return file;
}

}  // namespace headrace
