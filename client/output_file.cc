#include "client/output_file.h"

#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/file.h"

namespace headrace {
namespace {

absl::Status WriteInto(const std::string& path, std::string_view content) {
  std::ofstream stream(path, std::ios::binary);
  stream << content << std::flush;
  if (stream.good()) return absl::OkStatus();
  return absl::UnknownError(absl::StrCat("cannot write ", path));
}

}  // namespace

absl::Status WriteOutput(const std::string& flag, const std::string& path, std::string_view content,
                         const Console& console) {
  if (path == "-") {
    *console.out << content;
    return absl::OkStatus();
  }
  std::error_code error;
  const auto kind = std::filesystem::status(path, error).type();
  const bool special = kind == std::filesystem::file_type::character ||
                       kind == std::filesystem::file_type::fifo ||
                       kind == std::filesystem::file_type::socket;
  const absl::Status written =
      special ? WriteInto(path, content) : WriteFileAtomically(path, content);
  if (written.ok()) return written;
  return absl::InvalidArgumentError(absl::StrCat(flag, " ", path, ": ", written.message()));
}

}  // namespace headrace
