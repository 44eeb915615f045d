#include "coordinator/suited_workers.h"

#include "absl/strings/str_cat.h"

namespace headrace {

std::vector<v1::WorkerInfo> SuitedWorkers(std::vector<v1::WorkerInfo> workers, bool simulate) {
  std::erase_if(workers,
                [simulate](const v1::WorkerInfo& each) { return each.has_sim() != simulate; });
  return workers;
}

absl::Status CheckSuited(const std::vector<v1::WorkerInfo>& workers, bool simulate) {
  if (workers.empty() || !SuitedWorkers(workers, simulate).empty()) return absl::OkStatus();
  const std::string all = workers.size() == 1 ? "the one worker there is"
                                              : absl::StrCat("all ", workers.size(), " workers");
  const char* const be = workers.size() == 1 ? " is " : " are ";
  if (simulate) {
    return absl::FailedPreconditionError(
        absl::StrCat(all, be,
                     "real, and the job is to be simulated: start workers with "
                     "--device sim:…, or leave --simulate out"));
  }
  return absl::FailedPreconditionError(
      absl::StrCat(all, be,
                   "simulated: such workers train nothing. Add real ones, or ask for a "
                   "simulation with --simulate"));
}

}  // namespace headrace
