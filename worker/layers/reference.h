// Test only: the layers again, in double, one token after the other, sharing nothing with the code
// under test but shapes and parameter names. Finite differences of these are what Backward is held
// to.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "plan/layer_spec.h"

namespace headrace::reference {

using Numbers = std::vector<double>;

struct Reference {
  Model model;
  MicroBatchShape shape;
  std::map<std::string, Numbers> parameters;  // by name
  // What dropout multiplies with, 0 or 1 / (1 − p); empty: 1 everywhere.
  Numbers embedding_mask;   // [tokens, width]
  Numbers attention_mask;   // [sequences, heads, length, length]
  Numbers projection_mask;  // [tokens, width]
  Numbers mlp_mask;         // [tokens, width]

  Numbers Embedding(const std::vector<int32_t>& ids) const;
  Numbers Gpt2Block(int64_t block, const Numbers& x) const;
  Numbers LlamaBlock(int64_t block, const Numbers& x) const;
  // Σ −log softmax(logits)[target]
  double Head(const Numbers& x, const std::vector<int32_t>& targets) const;

 private:
  const Numbers& P(const std::string& name) const { return parameters.at(name); }
  Numbers Norm(const Numbers& x, const std::string& name) const;
  Numbers Linear(const Numbers& x, const std::string& name, int64_t in, int64_t out) const;
  // q: [tokens, heads * size]; k, v: [tokens, kv_heads * size]
  Numbers Attention(const Numbers& q, const Numbers& k, const Numbers& v) const;
  // Turns pairs (i, i + size / 2) of each head by position · theta^(−2i / size).
  Numbers Rotate(const Numbers& x, int64_t heads) const;
};

}  // namespace headrace::reference
