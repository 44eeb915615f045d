// Problems for the partition's tests, and what is true of them by trying everything.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "plan/planner/partition.h"

namespace headrace {

// Layers with a cost and a size each, classes with a speed; earlier stages keep more (as 1F1B
// does), and each stage but the ends has a link.
struct Table : CellCosts {
  std::vector<double> seconds;
  std::vector<int64_t> bytes;
  std::vector<double> slowness;  // of each class
  int num_stages = 1;
  int64_t kept_per_stage = 0;
  double link_s = 0;

  double Seconds(int stage, int c, int first, int end) const override {
    const double sum =
        std::accumulate(seconds.begin() + first, seconds.begin() + end, 0.0) * slowness[c];
    return sum + link_s * ((stage > 0) + (stage < num_stages - 1));
  }
  int64_t Bytes(int stage, int c, int first, int end) const override {
    return std::accumulate(bytes.begin() + first, bytes.begin() + end, int64_t{0}) +
           kept_per_stage * (num_stages - stage);
  }
};

// The least slowest stage over every cut and every order of classes, or over every cut for one
// order; infinite: nothing fits.
inline double BruteForce(const PartitionProblem& p, const std::vector<int>& order = {}) {
  std::vector<int> left = p.class_sizes;
  std::function<double(int, int)> rest = [&](int stage, int first) {
    if (stage == p.num_stages) {
      return first == p.num_layers ? 0 : std::numeric_limits<double>::infinity();
    }
    double best = std::numeric_limits<double>::infinity();
    for (int end = first + 1; end <= p.num_layers; ++end) {
      for (size_t c = 0; c < left.size(); ++c) {
        const int cls = static_cast<int>(c);
        if (!order.empty() && order[stage] != cls) continue;
        if (left[c] == 0 || p.costs->Bytes(stage, cls, first, end) > p.limit_bytes[c]) continue;
        --left[c];
        best = std::min(best,
                        std::max(p.costs->Seconds(stage, cls, first, end), rest(stage + 1, end)));
        ++left[c];
      }
    }
    return best;
  };
  return rest(0, 0);
}

inline void ExpectSound(const PartitionProblem& p, const Partition& partition,
                        const std::string& what) {
  ASSERT_EQ(static_cast<int>(partition.cells.size()), p.num_stages) << what;
  std::vector<int> used(p.class_sizes.size());
  int next = 0;
  double slowest_s = 0;
  for (int k = 0; k < p.num_stages; ++k) {
    const Cell& cell = partition.cells[k];
    EXPECT_EQ(cell.first, next) << what;  // ordered, disjoint, no layer dropped
    EXPECT_LT(cell.first, cell.end) << what;
    next = cell.end;
    ++used[cell.worker_class];
    EXPECT_LE(p.costs->Bytes(k, cell.worker_class, cell.first, cell.end),
              p.limit_bytes[cell.worker_class])
        << what;
    slowest_s = std::max(slowest_s, p.costs->Seconds(k, cell.worker_class, cell.first, cell.end));
  }
  EXPECT_EQ(next, p.num_layers) << what;
  EXPECT_DOUBLE_EQ(partition.slowest_s, slowest_s) << what;
  for (size_t c = 0; c < used.size(); ++c) EXPECT_LE(used[c], p.class_sizes[c]) << what;
}

// Workers unequal in speed and memory, memory often too small, links, stages that keep more the
// earlier they are.
struct RandomProblem {
  Table table;
  PartitionProblem problem;

  explicit RandomProblem(unsigned seed) {
    std::mt19937 random(seed);
    const auto draw = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    problem.num_layers = draw(1, 7);
    problem.num_stages = table.num_stages = draw(1, std::min(problem.num_layers, 4));
    for (int i = 0; i < problem.num_layers; ++i) {
      table.seconds.push_back(draw(0, 9) + (draw(0, 3) == 0 ? 0.5 : 0));
      table.bytes.push_back(draw(1, 9));
    }
    const int classes = draw(1, 3);
    for (int c = 0; c < classes; ++c) {
      problem.class_sizes.push_back(draw(1, 3));
      problem.limit_bytes.push_back(draw(5, 30));
      table.slowness.push_back(draw(1, 4) * 0.5);
    }
    table.kept_per_stage = draw(0, 2);
    table.link_s = draw(0, 2) * 0.25;
    problem.costs = &table;
  }
  RandomProblem(const RandomProblem&) = delete;

  bool enough_workers() const {
    return std::accumulate(problem.class_sizes.begin(), problem.class_sizes.end(), 0) >=
           problem.num_stages;
  }
};

}  // namespace headrace
