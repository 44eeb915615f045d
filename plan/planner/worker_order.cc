#include "plan/planner/worker_order.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>

namespace headrace {
namespace {

// The most n in [0, most] for which `fits(n)`, which every smaller n then does too. fits(0) holds.
template <typename Fits>
int Most(int most, const Fits& fits) {
  int yes = 0, no = most + 1;
  while (no - yes > 1) {
    const int middle = yes + (no - yes) / 2;
    (fits(middle) ? yes : no) = middle;
  }
  return yes;
}

// One class of workers under one bound, in layers.
struct Candidate {
  int holds = 0;  // out of the middle
  int holds_first = 0, holds_last = 0;
  int64_t spare_bytes = 0;  // beside what its time allows of the middle; below 0: lacks
  double layer_s = 0;       // one layer of the middle
};

class Orderer {
 public:
  Orderer(const PartitionProblem& problem, const PartitionBounds& bounds)
      : p_(problem), bounds_(bounds), free_(problem.class_sizes) {
    for (size_t c = 0; c < p_.class_sizes.size(); ++c) {
      candidates_.push_back(Look(static_cast<int>(c)));
    }
  }

  std::optional<std::vector<int>> Order() {
    RankByHolding();
    const std::vector<int> firsts = BestAt(&Candidate::holds_first, /*latest=*/false);
    if (firsts.empty()) return std::nullopt;
    if (p_.num_stages == 1) return std::vector<int>{firsts[0]};
    const std::vector<int> lasts = BestAt(&Candidate::holds_last, /*latest=*/true);
    std::optional<std::pair<int, int>> ends;
    for (const int first : firsts) {
      for (const int last : lasts) {
        if (first == last && free_[first] == 1) continue;
        if (!ends || Worth(first, last) > Worth(ends->first, ends->second)) ends = {first, last};
      }
    }
    if (!ends) return std::nullopt;
    --free_[ends->first];
    --free_[ends->second];
    std::vector<int> order = {ends->first};
    AddMiddle(&order);
    order.push_back(ends->second);
    return order;
  }

 private:
  bool InTime(int stage, int c, int first, int end) const {
    return p_.costs->Seconds(stage, c, first, end) <= bounds_.seconds;
  }

  int64_t Spare(int stage, int c, int first, int end) const {
    return p_.limit_bytes[c] + bounds_.extra_bytes - p_.costs->Bytes(stage, c, first, end);
  }

  bool Fits(int stage, int c, int first, int end) const {
    return Spare(stage, c, first, end) >= 0 && InTime(stage, c, first, end);
  }

  Candidate Look(int c) const {
    const int stage = p_.num_stages / 2, last_stage = p_.num_stages - 1, all = p_.num_layers;
    // n layers from the middle on; where there are not so many, from before it too.
    const auto end_of = [&](int n) { return std::max(std::min(all, all / 2 + n), n); };
    const int in_time =
        Most(all, [&](int n) { return n == 0 || InTime(stage, c, end_of(n) - n, end_of(n)); });
    const int n = std::max(in_time, 1);
    Candidate out;
    out.holds = Most(in_time, [&](int held) {
      return held == 0 || Spare(stage, c, end_of(held) - held, end_of(held)) >= 0;
    });
    out.spare_bytes = Spare(stage, c, end_of(n) - n, end_of(n));
    out.layer_s = p_.costs->Seconds(stage, c, end_of(1) - 1, end_of(1));
    out.holds_first = Most(all, [&](int held) { return held == 0 || Fits(0, c, 0, held); });
    out.holds_last =
        Most(all, [&](int held) { return held == 0 || Fits(last_stage, c, all - held, all); });
    return out;
  }

  // Classes by what they hold, of equal ones the fastest first; and what the last one holds of
  // those that serve.
  void RankByHolding() {
    ranked_.resize(candidates_.size());
    std::iota(ranked_.begin(), ranked_.end(), 0);
    std::stable_sort(ranked_.begin(), ranked_.end(), [this](int a, int b) {
      const Candidate &x = candidates_[a], &y = candidates_[b];
      return x.holds != y.holds ? x.holds > y.holds : x.layer_s < y.layer_s;
    });
    int serving = 0;
    for (const int c : ranked_) {
      serving += free_[c];
      least_ = candidates_[c].holds;
      if (serving >= p_.num_stages) break;
    }
  }

  // What a worker holds at an end, less what it is missed for in the middle.
  int Worth(int c, int Candidate::*holds) const {
    return candidates_[c].*holds - std::max(0, candidates_[c].holds - least_);
  }
  int Worth(int first, int last) const {
    return Worth(first, &Candidate::holds_first) + Worth(last, &Candidate::holds_last);
  }

  // The two classes worth most at an end, so that one is left if the other end takes the other; of
  // equals those whose place in the order is nearest to that end.
  std::vector<int> BestAt(int Candidate::*holds, bool latest) const {
    std::vector<int> able;
    for (size_t c = 0; c < candidates_.size(); ++c) {
      if (free_[c] > 0 && candidates_[c].*holds > 0) able.push_back(static_cast<int>(c));
    }
    const auto better = [&](int a, int b) {
      const int x = Worth(a, holds), y = Worth(b, holds);
      if (x != y) return x > y;
      const int64_t s = candidates_[a].spare_bytes, t = candidates_[b].spare_bytes;
      return s != t ? (s > t) != latest : a < b;
    };
    const size_t two = std::min<size_t>(2, able.size());
    std::partial_sort(able.begin(), able.begin() + static_cast<std::ptrdiff_t>(two), able.end(),
                      better);
    able.resize(two);
    return able;
  }

  void AddMiddle(std::vector<int>* order) {
    std::vector<std::pair<int, int>> serving;  // class, workers
    int missing = p_.num_stages - 2;
    for (const int c : ranked_) {
      const int count = std::min(free_[c], missing);
      missing -= count;
      if (count > 0) serving.emplace_back(c, count);
    }
    std::stable_sort(serving.begin(), serving.end(), [this](const auto& a, const auto& b) {
      return candidates_[a.first].spare_bytes > candidates_[b.first].spare_bytes;
    });
    for (const auto& [c, count] : serving) order->insert(order->end(), count, c);
  }

  const PartitionProblem& p_;
  const PartitionBounds bounds_;
  std::vector<Candidate> candidates_;  // by class
  std::vector<int> free_;              // workers of each class
  std::vector<int> ranked_;
  int least_ = 0;
};

}  // namespace

std::optional<std::vector<int>> OrderWorkers(const PartitionProblem& problem,
                                             const PartitionBounds& bounds) {
  return Orderer(problem, bounds).Order();
}

}  // namespace headrace
