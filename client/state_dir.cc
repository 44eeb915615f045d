#include "client/state_dir.h"

#include <stdlib.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/status.h"

namespace headrace {

absl::StatusOr<StateDir> StateDir::Open(const std::string& given) {
  std::string root = given;
  const char* xdg = getenv("XDG_STATE_HOME");
  const char* home = getenv("HOME");
  if (root.empty() && xdg != nullptr && *xdg != '\0') root = absl::StrCat(xdg, "/headrace");
  if (root.empty() && home != nullptr && *home != '\0') {
    root = absl::StrCat(home, "/.local/state/headrace");
  }
  if (root.empty()) {
    return absl::InvalidArgumentError(
        "nowhere to keep state: neither HOME nor XDG_STATE_HOME is set; give --state-dir");
  }
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(root, error);
  if (error)
    return absl::InvalidArgumentError(absl::StrCat("--state-dir ", root, ": no such path"));
  const StateDir dir(absolute.lexically_normal().string());
  if (const absl::Status made = MakeDirectories(dir.root()); !made.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("state directory: ", std::string(made.message())));
  }
  HEADRACE_RETURN_IF_ERROR(MakeDirectories(dir.root() + "/logs"));
  return dir;
}

}  // namespace headrace
