// For the store's own files: messages in the columns of a row.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "coordinator/store/database.h"

namespace headrace {

// DATA_LOSS: the column holds no such message; `what` names it.
template <typename Message>
absl::Status ParseColumn(const Statement& row, int column, const char* what, Message* message) {
  if (message->ParseFromString(row.Blob(column))) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("the database holds a damaged ", what));
}

}  // namespace headrace
