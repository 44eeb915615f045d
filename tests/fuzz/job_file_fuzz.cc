#include <string>

#include "client/job_file.h"
#include "tests/fuzz/fuzz_targets.h"

namespace headrace {

void FuzzJobFile(std::string_view input) {
  const absl::StatusOr<JobFile> file = ParseJobFile(std::string(input), "job.yaml");
  if (file.ok()) {
    FUZZ_CHECK(!file->spec.name().empty(), "a job without a name is valid");
    return;
  }
  FUZZ_CHECK(absl::IsInvalidArgument(file.status()), "another error than INVALID_ARGUMENT");
  FUZZ_CHECK(file.status().message().substr(0, 8) == "job.yaml", "an error that names no file");
}

}  // namespace headrace
