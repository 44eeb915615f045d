#include "coordinator/job_messages.h"

#include <string_view>

namespace headrace {

std::string ShortName(v1::JobState state) {
  constexpr std::string_view kPrefix = "JOB_STATE_";
  const std::string name = v1::JobState_Name(state);
  return name.size() > kPrefix.size() ? name.substr(kPrefix.size()) : "UNKNOWN";
}

}  // namespace headrace
