// Compares every tensor two replays of a job reported (TensorHashes), for `headrace verify`.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "client/coordinator.h"

namespace headrace {

// All hashes of one run, in the order they were computed: by step, then stage, then as reported.
// Used by one thread.
class HashRecord : public JobObserver {
 public:
  void OnTensorHashes(const v1::TensorHashes& hashes) override;

  struct Entry {
    std::string name;
    uint64_t hash = 0;
  };
  // Entries of each step. A tensor two stages have (a tied weight) is the first stage's.
  std::map<int64_t, std::vector<Entry>> BySteps() const;

 private:
  // (step, stage): a report repeated after a reconnect replaces itself.
  std::map<std::pair<int64_t, int64_t>, std::vector<Entry>> reports_;
};

struct HashDifference {
  int64_t step = 0;
  std::string name;
  std::string what;  // "differs", "only at K = 1", …
};

struct HashComparison {
  int64_t steps = 0;
  int64_t tensors = 0;                      // compared
  std::vector<HashDifference> differences;  // in the order of the first run
};

// `a_label` and `b_label` name the runs in HashDifference::what.
HashComparison Compare(const HashRecord& a, const std::string& a_label, const HashRecord& b,
                       const std::string& b_label);

}  // namespace headrace
