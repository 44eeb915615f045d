#include "client/hash_comparison.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace headrace {
namespace {

using Entries = std::vector<HashRecord::Entry>;

void CompareStep(int64_t step, const Entries& a, const std::string& a_label, const Entries& b,
                 const std::string& b_label, HashComparison* result) {
  std::map<std::string, uint64_t> rest;
  for (const auto& entry : b) rest.emplace(entry.name, entry.hash);
  for (const auto& entry : a) {
    const auto it = rest.find(entry.name);
    ++result->tensors;
    if (it == rest.end()) {
      result->differences.push_back({step, entry.name, absl::StrCat("is only in ", a_label)});
      continue;
    }
    if (it->second != entry.hash) result->differences.push_back({step, entry.name, "differs"});
    rest.erase(it);
  }
  for (const auto& entry : b) {
    if (rest.count(entry.name) == 0) continue;
    ++result->tensors;
    result->differences.push_back({step, entry.name, absl::StrCat("is only in ", b_label)});
  }
}

}  // namespace

void HashRecord::OnTensorHashes(const v1::TensorHashes& hashes) {
  Entries& entries = reports_[{hashes.step(), hashes.stage()}];
  entries.clear();
  const int n = std::min(hashes.names_size(), hashes.hashes_size());
  for (int i = 0; i < n; ++i) entries.push_back({hashes.names(i), hashes.hashes(i)});
}

std::map<int64_t, std::vector<HashRecord::Entry>> HashRecord::BySteps() const {
  std::map<int64_t, Entries> steps;
  std::map<int64_t, std::set<std::string>> seen;
  for (const auto& [key, entries] : reports_) {
    for (const Entry& entry : entries) {
      if (seen[key.first].insert(entry.name).second) steps[key.first].push_back(entry);
    }
  }
  return steps;
}

HashComparison Compare(const HashRecord& a, const std::string& a_label, const HashRecord& b,
                       const std::string& b_label) {
  const auto a_steps = a.BySteps();
  const auto b_steps = b.BySteps();
  std::set<int64_t> steps;
  for (const auto& [step, entries] : a_steps) steps.insert(step);
  for (const auto& [step, entries] : b_steps) steps.insert(step);
  HashComparison result;
  result.steps = static_cast<int64_t>(steps.size());
  const Entries none;
  for (int64_t step : steps) {
    const auto in_a = a_steps.find(step);
    const auto in_b = b_steps.find(step);
    CompareStep(step, in_a == a_steps.end() ? none : in_a->second, a_label,
                in_b == b_steps.end() ? none : in_b->second, b_label, &result);
  }
  return result;
}

}  // namespace headrace
