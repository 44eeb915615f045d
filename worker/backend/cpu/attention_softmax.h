// What lies between attention's products, on panels [key][query] of kQueries queries: the mask,
// softmax, its gradient. Included by attention_kernel.h only, to be compiled for the same
// processor.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "worker/backend/cpu/attention_head.h"
#include "worker/backend/cpu/exp.h"

namespace headrace {
namespace {

// Keys beyond the diagonal: key first + j of a panel that begins at query `first` counts for
// queries j and later only.
template <int kQueries>
void ZeroBeyondDiagonal(float* panel, int64_t first, int64_t keys) {
  for (int64_t j = first + 1; j < keys; ++j) {
    std::memset(panel + j * kQueries, 0, (j - first) * sizeof(float));
  }
}

// mask[key][query] of queries [first, first + rows), keys up to each query; of lanes without a
// query 0.
template <int kQueries>
void DrawMask(const AttentionHead& h, int64_t first, int64_t rows, float* mask) {
  if (rows < kQueries) std::memset(mask, 0, (first + rows) * kQueries * sizeof(float));
  for (int64_t q = 0; q < rows; ++q) {
    h.draw_mask(h, first + q, mask + q, kQueries);
  }
}

// p: exponentials → times the mask, which is drawn into `mask`.
template <int kQueries>
void MaskProbabilities(const AttentionHead& h, int64_t first, int64_t rows, float* mask, float* p) {
  DrawMask<kQueries>(h, first, rows, mask);
#pragma omp simd
  for (int64_t i = 0; i < (first + rows) * kQueries; ++i) p[i] *= mask[i];
  ZeroBeyondDiagonal<kQueries>(p, first, first + rows);  // where no mask was drawn
}

// p: scores of `keys` keys → exponentials less each query's largest. Returns largest and sum.
template <int kQueries>
void Exponentials(float* p, int64_t first, int64_t keys, float* largest, float* sum) {
  float max[kQueries], total[kQueries];
  std::fill_n(max, kQueries, -std::numeric_limits<float>::infinity());
  std::fill_n(total, kQueries, 0.0f);
  const int64_t whole = std::min(first + 1, keys);
  for (int64_t j = 0; j < whole; ++j) {
    const float* row = p + j * kQueries;
#pragma omp simd
    for (int q = 0; q < kQueries; ++q) max[q] = row[q] > max[q] ? row[q] : max[q];
  }
  for (int64_t j = whole; j < keys; ++j) {
    const float* row = p + j * kQueries;
    for (int q = static_cast<int>(j - first); q < kQueries; ++q) {
      max[q] = row[q] > max[q] ? row[q] : max[q];
    }
  }
  for (int64_t j = 0; j < whole; ++j) {
    float* row = p + j * kQueries;
#pragma omp simd
    for (int q = 0; q < kQueries; ++q) total[q] += row[q] = ExpFromBelow(row[q] - max[q]);
  }
  for (int64_t j = whole; j < keys; ++j) {
    float* row = p + j * kQueries;
    const int diagonal = static_cast<int>(j - first);
#pragma omp simd
    for (int q = 0; q < kQueries; ++q) {
      const float e = ExpFromBelow(row[q] - max[q]);
      row[q] = q < diagonal ? 0.0f : e;
      total[q] += row[q];
    }
  }
  std::copy_n(max, kQueries, largest);
  std::copy_n(total, kQueries, sum);
}

// result[size][query]: sums over keys → outputs. Stores the log-sum-exps.
template <int kQueries>
void DivideBySums(const AttentionHead& h, int64_t first, int64_t rows, const float* largest,
                  const float* sum, float* result) {
  for (int64_t d = 0; d < h.size; ++d) {
#pragma omp simd
    for (int q = 0; q < kQueries; ++q) result[d * kQueries + q] /= sum[q];
  }
  for (int64_t q = 0; q < rows; ++q) h.lse[first + q] = largest[q] + std::log(sum[q]);
}

// p: scores → probabilities, masked; dp → gradients of scores.
template <int kQueries>
void ScoreGradients(const AttentionHead& h, float* p, float* dp, const float* mask, int64_t keys,
                    const float* lse, const float* delta) {
  if (h.draw_mask != nullptr) {
    for (int64_t j = 0; j < keys; ++j, p += kQueries, dp += kQueries, mask += kQueries) {
#pragma omp simd
      for (int q = 0; q < kQueries; ++q) {
        const float e = ExpFromBelow(p[q] - lse[q]);
        p[q] = e * mask[q];
        dp[q] = (p[q] * dp[q] - e * delta[q]) * h.scale;
      }
    }
    return;
  }
  for (int64_t j = 0; j < keys; ++j, p += kQueries, dp += kQueries) {
#pragma omp simd
    for (int q = 0; q < kQueries; ++q) {
      p[q] = ExpFromBelow(p[q] - lse[q]);
      dp[q] = p[q] * (dp[q] - delta[q]) * h.scale;
    }
  }
}

// Σ_d a · b of each row, lanes first, in a fixed order.
float RowDot(const float* a, const float* b, int64_t n) {
  float lane[kAttentionPanel] = {};
  int64_t j = 0;
  for (; j + kAttentionPanel <= n; j += kAttentionPanel) {
#pragma omp simd
    for (int l = 0; l < kAttentionPanel; ++l) lane[l] += a[j + l] * b[j + l];
  }
  for (int l = 0; j < n; ++j, ++l) lane[l] += a[j] * b[j];
  for (int half = kAttentionPanel / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) lane[l] += lane[l + half];
  }
  return lane[0];
}

// Of queries [first, first + rows): the saved log-sum-exps, and Σ_d dout · out.
void LogSumsAndDeltas(const AttentionHead& h, int64_t first, int64_t rows, float* lse,
                      float* delta) {
  for (int64_t q = 0; q < rows; ++q) {
    const int64_t row = (first + q) * h.out_stride;
    lse[q] = h.lse[first + q];
    delta[q] = RowDot(h.dout + row, h.out + row, h.size);
  }
}

}  // namespace
}  // namespace headrace
