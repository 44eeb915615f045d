// What the tests of attention share: awkward shapes, and the formula row by row in double.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "worker/backend/ops_testing.h"

namespace headrace {

inline std::string Name(const AttentionShape& s) {
  return std::to_string(s.sequences) + "x" + std::to_string(s.length) + " heads " +
         std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + " size " +
         std::to_string(s.size) + " dropout " + std::to_string(s.dropout);
}

inline AttentionShape Shape(int64_t sequences, int64_t length, int64_t heads, int64_t kv_heads,
                            int64_t size, float dropout = 0) {
  AttentionShape shape{sequences, length, heads, kv_heads, size, dropout, {}};
  shape.mask = MakeStream(11, RandomPurpose::kDropout, 1, 2, 3);
  return shape;
}

// 1, primes, and one around the tiles of 64 rows and 16 columns; grouped queries; dropout.
inline const std::vector<AttentionShape>& Shapes() {
  static const std::vector<AttentionShape> shapes = {
      Shape(1, 1, 1, 1, 1),        Shape(2, 7, 3, 3, 5),       Shape(1, 15, 2, 1, 16),
      Shape(1, 63, 2, 2, 8),       Shape(1, 64, 1, 1, 64),     Shape(2, 65, 4, 2, 8),
      Shape(1, 131, 6, 2, 12),     Shape(2, 7, 3, 3, 5, 0.3f), Shape(1, 65, 4, 2, 8, 0.1f),
      Shape(1, 131, 2, 1, 4, 0.5f)};
  return shapes;
}

inline int64_t Stride(const AttentionShape& s) { return (s.heads + 2 * s.kv_heads) * s.size; }

inline double Mask(const AttentionShape& s, int64_t sequence, int64_t head, int64_t i, int64_t j) {
  if (s.dropout == 0) return 1;
  const int64_t row = (sequence * s.heads + head) * s.length + i;
  const int64_t block = row * ((s.length + 3) / 4) + j / 4;
  const uint32_t bits = s.mask.Block(static_cast<uint32_t>(block))[static_cast<size_t>(j % 4)];
  return UniformFloat(bits) < s.dropout ? 0 : 1 / (1 - static_cast<double>(s.dropout));
}

// Row by row from the formula. lse: null or [sequences, heads, length].
inline Doubles Reference(const Doubles& qkv, const AttentionShape& s, Doubles* lse = nullptr) {
  Doubles out(static_cast<size_t>(s.sequences * s.length * s.heads * s.size));
  for (int64_t b = 0; b < s.sequences; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) {
      const int64_t kv = h * s.kv_heads / s.heads;
      for (int64_t i = 0; i < s.length; ++i) {
        const double* q = &qkv[static_cast<size_t>((b * s.length + i) * Stride(s) + h * s.size)];
        Doubles p(static_cast<size_t>(i + 1));
        double sum = 0;
        for (int64_t j = 0; j <= i; ++j) {
          const double* k =
              &qkv[static_cast<size_t>((b * s.length + j) * Stride(s) + (s.heads + kv) * s.size)];
          double dot = 0;
          for (int64_t d = 0; d < s.size; ++d) dot += q[d] * k[d];
          p[static_cast<size_t>(j)] = std::exp(dot / std::sqrt(static_cast<double>(s.size)));
          sum += p[static_cast<size_t>(j)];
        }
        if (lse != nullptr) {
          (*lse)[static_cast<size_t>((b * s.heads + h) * s.length + i)] = std::log(sum);
        }
        double* o = &out[static_cast<size_t>(((b * s.length + i) * s.heads + h) * s.size)];
        for (int64_t j = 0; j <= i; ++j) {
          const double weight = p[static_cast<size_t>(j)] / sum * Mask(s, b, h, i, j);
          const double* v = &qkv[static_cast<size_t>((b * s.length + j) * Stride(s) +
                                                     (s.heads + s.kv_heads + kv) * s.size)];
          for (int64_t d = 0; d < s.size; ++d) o[d] += weight * v[d];
        }
      }
    }
  }
  return out;
}

}  // namespace headrace
