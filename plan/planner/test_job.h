// Small jobs for the planner's tests.
#pragma once

#include <google/protobuf/text_format.h>

#include <string>
#include <vector>

#include "headrace/v1/job.pb.h"
#include "plan/planner/planner.h"

namespace headrace {

// GPT-2 of 6 blocks, width 64, tied; 8 sequences of 32 tokens, M = 4.
inline v1::JobSpec SmallGpt2() {
  v1::JobSpec spec;
  google::protobuf::TextFormat::ParseFromString(
      R"pb(
        name: "small"
        model {
          family: MODEL_FAMILY_GPT2
          vocab_size: 256
          n_layer: 6
          n_embd: 64
          n_head: 4
          n_positions: 64
        }
        data { text: "x" tokenizer: TOKENIZER_BYTE }
        training {
          steps: 10
          batch_size: 8
          micro_batches: 4
          sequence_length: 32
          optimizer { kind: OPTIMIZER_KIND_ADAMW learning_rate: 0.001 }
        }
      )pb",
      &spec);
  return spec;
}

inline v1::JobSpec SmallLlama() {
  v1::JobSpec spec = SmallGpt2();
  google::protobuf::TextFormat::ParseFromString(R"pb(
                                                  family: MODEL_FAMILY_LLAMA
                                                  vocab_size: 256
                                                  num_hidden_layers: 5
                                                  hidden_size: 64
                                                  num_attention_heads: 4
                                                  num_key_value_heads: 2
                                                  intermediate_size: 96
                                                  max_position_embeddings: 64
                                                )pb",
                                                spec.mutable_model());
  return spec;
}

inline std::vector<PlanWorker> EqualWorkers(int count, int64_t memory_limit_bytes,
                                            double flops_per_second = 50e9) {
  std::vector<PlanWorker> workers;
  for (int i = 0; i < count; ++i) {
    workers.push_back({"w" + std::to_string(i), flops_per_second, memory_limit_bytes, 1});
  }
  return workers;
}

}  // namespace headrace
