// Context added going up: Annotate(status, "stage 2, step 118") → "stage 2, step 118: …".
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace headrace {

// Same code, message prefixed with "context: ". OK stays OK.
absl::Status Annotate(const absl::Status& status, std::string_view context);

}  // namespace headrace

#define HEADRACE_RETURN_IF_ERROR(expr)                                                        \
  do {                                                                                        \
    if (absl::Status headrace_status = (expr); !headrace_status.ok()) return headrace_status; \
  } while (0)

#define HEADRACE_CONCAT_INNER(a, b) a##b
#define HEADRACE_CONCAT(a, b) HEADRACE_CONCAT_INNER(a, b)
// HEADRACE_ASSIGN_OR_RETURN(auto x, F()): x = *F(), or returns F's status.
#define HEADRACE_ASSIGN_OR_RETURN(lhs, expr) \
  HEADRACE_ASSIGN_OR_RETURN_IMPL(HEADRACE_CONCAT(status_or_, __LINE__), lhs, expr)
#define HEADRACE_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                                   \
  if (!tmp.ok()) return tmp.status();                  \
  lhs = std::move(tmp).value()
