#include "worker/layers/reference.h"

#include <cmath>

namespace headrace::reference {
namespace {

double MaskAt(const Numbers& mask, int64_t i) { return mask.empty() ? 1 : mask[i]; }

// a + mask ∘ b
Numbers AddMasked(const Numbers& a, const Numbers& b, const Numbers& mask) {
  Numbers y(a.size());
  for (size_t i = 0; i < a.size(); ++i) y[i] = a[i] + b[i] * MaskAt(mask, i);
  return y;
}

double GeluTanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

}  // namespace

Numbers Reference::Norm(const Numbers& x, const std::string& name) const {
  const int64_t d = model.width;
  const bool centred = model.family == ModelFamily::kGpt2;
  const Numbers& gain = P(name + ".weight");
  const Numbers bias = centred ? P(name + ".bias") : Numbers(d, 0.0);
  Numbers y(x.size());
  for (size_t row = 0; row < x.size(); row += d) {
    double mean = 0, square = 0;
    if (centred) {
      for (int64_t i = 0; i < d; ++i) mean += x[row + i] / d;
    }
    for (int64_t i = 0; i < d; ++i) square += (x[row + i] - mean) * (x[row + i] - mean) / d;
    const double rstd = 1 / std::sqrt(square + model.norm_epsilon);
    for (int64_t i = 0; i < d; ++i) y[row + i] = (x[row + i] - mean) * rstd * gain[i] + bias[i];
  }
  return y;
}

Numbers Reference::Linear(const Numbers& x, const std::string& name, int64_t in,
                          int64_t out) const {
  const Numbers& w = P(name + ".weight");
  const auto bias = parameters.find(name + ".bias");
  const int64_t n = static_cast<int64_t>(x.size()) / in;
  Numbers y(n * out);
  for (int64_t t = 0; t < n; ++t) {
    for (int64_t o = 0; o < out; ++o) {
      double sum = bias == parameters.end() ? 0 : bias->second[o];
      for (int64_t i = 0; i < in; ++i) sum += x[t * in + i] * w[o * in + i];
      y[t * out + o] = sum;
    }
  }
  return y;
}

Numbers Reference::Attention(const Numbers& q, const Numbers& k, const Numbers& v) const {
  const int64_t size = model.head_size, length = shape.length;
  const int64_t q_row = model.heads * size, kv_row = model.kv_heads * size;
  Numbers out(q.size(), 0.0);
  for (int64_t s = 0; s < shape.sequences; ++s) {
    for (int64_t h = 0; h < model.heads; ++h) {
      const int64_t g = h / (model.heads / model.kv_heads);
      for (int64_t i = 0; i < length; ++i) {
        Numbers p(i + 1);
        double sum = 0;
        for (int64_t j = 0; j <= i; ++j) {
          double dot = 0;
          for (int64_t c = 0; c < size; ++c) {
            dot += q[(s * length + i) * q_row + h * size + c] *
                   k[(s * length + j) * kv_row + g * size + c];
          }
          sum += p[j] = std::exp(dot / std::sqrt(static_cast<double>(size)));
        }
        for (int64_t j = 0; j <= i; ++j) {
          const double weight =
              p[j] / sum *
              MaskAt(attention_mask, ((s * model.heads + h) * length + i) * length + j);
          for (int64_t c = 0; c < size; ++c) {
            out[(s * length + i) * q_row + h * size + c] +=
                weight * v[(s * length + j) * kv_row + g * size + c];
          }
        }
      }
    }
  }
  return out;
}

Numbers Reference::Rotate(const Numbers& x, int64_t heads) const {
  const int64_t size = model.head_size, half = size / 2;
  Numbers y(x.size());
  for (int64_t t = 0; t < shape.tokens(); ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < half; ++i) {
        const double angle =
            static_cast<double>(t % shape.length) * std::pow(model.rope_theta, -2.0 * i / size);
        const int64_t a = (t * heads + h) * size + i, b = a + half;
        y[a] = x[a] * std::cos(angle) - x[b] * std::sin(angle);
        y[b] = x[b] * std::cos(angle) + x[a] * std::sin(angle);
      }
    }
  }
  return y;
}

Numbers Reference::Embedding(const std::vector<int32_t>& ids) const {
  const bool gpt2 = model.family == ModelFamily::kGpt2;
  const Numbers& tokens = P(gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight");
  const int64_t d = model.width;
  Numbers y(ids.size() * d);
  for (size_t t = 0; t < ids.size(); ++t) {
    for (int64_t i = 0; i < d; ++i) {
      double value = tokens[ids[t] * d + i];
      if (gpt2) value += P("transformer.wpe.weight")[(t % shape.length) * d + i];
      y[t * d + i] = value * MaskAt(embedding_mask, t * d + i);
    }
  }
  return y;
}

Numbers Reference::Gpt2Block(int64_t block, const Numbers& x) const {
  const std::string name = "transformer.h." + std::to_string(block) + ".";
  const int64_t d = model.width, m = model.mlp_width;
  const Numbers qkv = Linear(Norm(x, name + "ln_1"), name + "attn.c_attn", d, 3 * d);
  Numbers part[3];
  for (int64_t t = 0; t < shape.tokens(); ++t) {
    for (int64_t which = 0; which < 3; ++which) {
      const auto at = qkv.begin() + t * 3 * d + which * d;
      part[which].insert(part[which].end(), at, at + d);
    }
  }
  const Numbers attention = Attention(part[0], part[1], part[2]);
  const Numbers r = AddMasked(x, Linear(attention, name + "attn.c_proj", d, d), projection_mask);
  Numbers wide = Linear(Norm(r, name + "ln_2"), name + "mlp.c_fc", d, m);
  for (double& value : wide) value = GeluTanh(value);
  return AddMasked(r, Linear(wide, name + "mlp.c_proj", m, d), mlp_mask);
}

Numbers Reference::LlamaBlock(int64_t block, const Numbers& x) const {
  const std::string name = "model.layers." + std::to_string(block) + ".";
  const int64_t d = model.width, m = model.mlp_width, kv = model.kv_heads * model.head_size;
  const Numbers norm1 = Norm(x, name + "input_layernorm");
  const Numbers q = Rotate(Linear(norm1, name + "self_attn.q_proj", d, d), model.heads);
  const Numbers k = Rotate(Linear(norm1, name + "self_attn.k_proj", d, kv), model.kv_heads);
  const Numbers v = Linear(norm1, name + "self_attn.v_proj", d, kv);
  const Numbers r = AddMasked(x, Linear(Attention(q, k, v), name + "self_attn.o_proj", d, d), {});
  const Numbers norm2 = Norm(r, name + "post_attention_layernorm");
  Numbers wide = Linear(norm2, name + "mlp.gate_proj", d, m);
  const Numbers up = Linear(norm2, name + "mlp.up_proj", d, m);
  for (size_t i = 0; i < wide.size(); ++i) wide[i] = wide[i] / (1 + std::exp(-wide[i])) * up[i];
  return AddMasked(r, Linear(wide, name + "mlp.down_proj", m, d), {});
}

double Reference::Head(const Numbers& x, const std::vector<int32_t>& targets) const {
  const bool gpt2 = model.family == ModelFamily::kGpt2;
  const int64_t v = model.vocabulary;
  const Numbers logits =
      Linear(Norm(x, gpt2 ? "transformer.ln_f" : "model.norm"), "lm_head", model.width, v);
  double loss = 0;
  for (size_t t = 0; t < targets.size(); ++t) {
    double sum = 0;
    for (int64_t i = 0; i < v; ++i) sum += std::exp(logits[t * v + i]);
    loss += std::log(sum) - logits[t * v + targets[t]];
  }
  return loss;
}

}  // namespace headrace::reference
