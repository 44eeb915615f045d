#include "client/commands/worker_list.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/flags.h"

namespace headrace {
namespace {

constexpr size_t kMaxWorkers = 4096;

absl::Status Bad(const std::string& part, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat("--workers: '", part, "' ", why,
                                                 "; write COUNT:MEMORY, such as 4:8GiB,2:24GiB"));
}

}  // namespace

absl::StatusOr<std::vector<PlanWorker>> ParseWorkerList(const std::string& text, int threads) {
  std::vector<PlanWorker> workers;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(text, ','))) {
    const std::vector<std::string> words = absl::StrSplit(part, ':');
    int64_t count = 0;
    if (words.size() != 2 || !absl::SimpleAtoi(words[0], &count))
      return Bad(part, "is not COUNT:MEMORY");
    if (count < 1 || workers.size() + static_cast<size_t>(count) > kMaxWorkers) {
      return Bad(part, absl::StrCat("brings the workers out of the range 1 to ", kMaxWorkers));
    }
    const absl::StatusOr<int64_t> bytes = ParseBytes(words[1]);
    if (!bytes.ok() || *bytes <= 0) return Bad(part, "has no memory size above 0");
    for (int64_t i = 0; i < count; ++i) {
      PlanWorker worker;
      worker.name = absl::StrCat("w", workers.size());
      worker.memory_limit_bytes = *bytes;
      worker.threads = threads;
      workers.push_back(std::move(worker));
    }
  }
  return workers;
}

}  // namespace headrace
