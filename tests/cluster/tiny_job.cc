#include "tests/cluster/tiny_job.h"

#include <array>

#include "absl/strings/str_cat.h"

namespace headrace {
namespace {

std::string Gpt2(const TinyJob& job) {
  return absl::StrCat("  n_layer: ", job.layers, "\n  n_embd: ", job.width,
                      "\n  n_head: ", job.heads, "\n  n_positions: ", job.context,
                      "\n  embd_pdrop: ", job.dropout, "\n  resid_pdrop: ", job.dropout,
                      "\n  attn_pdrop: ", job.dropout, "\n");
}

std::string Llama(const TinyJob& job) {
  return absl::StrCat("  num_hidden_layers: ", job.layers, "\n  hidden_size: ", job.width,
                      "\n  num_attention_heads: ", job.heads, "\n  num_key_value_heads: 1",
                      "\n  intermediate_size: ", 2 * job.width + 8,
                      "\n  max_position_embeddings: ", job.context, "\n");
}

}  // namespace

std::string JobFileText(const TinyJob& job) {
  return absl::StrCat(
      "name: ", job.name, "\nmodel:\n  family: ", job.family, "\n  vocab_size: 256\n",
      "  tie_word_embeddings: ", job.tied ? "true" : "false", "\n",
      job.family == "gpt2" ? Gpt2(job) : Llama(job), "data:\n  text: ", job.text,
      "\n  tokenizer: byte\n  seed: 5\ntraining:\n  steps: ", job.steps,
      "\n  batch_size: ", job.batch, "\n  micro_batches: ", job.micro_batches,
      "\n  sequence_length: ", job.length, "\n  seed: 11\n  clip_norm: ", job.clip_norm,
      "\n  eval_every: ", job.eval_every,
      "\n  optimizer:\n    kind: adamw\n    learning_rate: ", job.learning_rate,
      "\n    weight_decay: 0.1\n", job.more_training,
      "pipeline:\n  stages: ", job.stages == 0 ? "auto" : absl::StrCat(job.stages),
      "\n  schedule: ", job.schedule, "\n  recompute: ", job.recompute,
      "\n  transport: ", job.transport, "\nrecovery:\n  restart: ", job.restart ? "auto" : "off",
      "\n", job.more_recovery, "checkpoint:\n",
      job.checkpoint.empty() ? "  every_minutes: 0\n  replicate: off\n" : job.checkpoint);
}

std::string TinyText() {
  static constexpr std::array<const char*, 7> kWho = {"The river", "A wheel",  "The miller", "Rain",
                                                      "The gate",  "A barrel", "The old dog"};
  static constexpr std::array<const char*, 5> kDoes = {"turns", "waits for", "carries", "hears",
                                                       "fills"};
  static constexpr std::array<const char*, 11> kWhat = {
      "the stone", "the sea",  "a song",    "the valley", "its own shadow", "nobody",
      "the wheel", "the corn", "the house", "a stranger", "the night"};
  std::string text;
  for (size_t i = 0; i < 700; ++i) {
    absl::StrAppend(&text, kWho[i % 7], " ", kDoes[i * i % 5], " ", kWhat[i * 3 % 11], ".\n");
  }
  return text;
}

}  // namespace headrace
