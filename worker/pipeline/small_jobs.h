// For tests: a small model of each family, to be trained for four steps; FillPlan says on how many
// stages.
#pragma once

#include <cstdint>
#include <string>

#include "headrace/v1/worker.pb.h"

namespace headrace::testing {

inline constexpr int64_t kVocabulary = 29;
inline constexpr int kBlocks = 2;
inline constexpr int kLayers = kBlocks + 2;

inline v1::StageAssignment Gpt2Job() {
  v1::StageAssignment assignment;
  assignment.set_job_id("j1");
  assignment.set_generation(1);
  v1::ModelSpec* model = assignment.mutable_spec()->mutable_model();
  model->set_family(v1::MODEL_FAMILY_GPT2);
  model->set_vocab_size(kVocabulary);
  model->set_n_layer(kBlocks);
  model->set_n_embd(16);
  model->set_n_head(2);
  model->set_n_positions(12);
  model->set_embd_pdrop(0.1);
  model->set_resid_pdrop(0.2);
  model->set_attn_pdrop(0.1);
  v1::TrainingSpec* training = assignment.mutable_spec()->mutable_training();
  training->set_steps(4);
  training->set_batch_size(5);  // micro-batches of 2, 2 and 1 sequences
  training->set_micro_batches(3);
  training->set_sequence_length(7);
  training->mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_ADAMW);
  training->mutable_optimizer()->set_learning_rate(0.01);
  training->mutable_optimizer()->set_weight_decay(0.1);
  training->set_clip_norm(0.5);
  training->set_seed(11);
  training->set_eval_every(2);
  training->set_eval_batches(2);
  assignment.mutable_spec()->mutable_data()->set_validation_split(0.2);
  assignment.mutable_dataset()->set_sha256(std::string(64, 'a'));
  assignment.set_wait_timeout_ms(30'000);
  return assignment;
}

inline v1::StageAssignment LlamaJob() {
  v1::StageAssignment assignment = Gpt2Job();
  v1::ModelSpec* model = assignment.mutable_spec()->mutable_model();
  model->Clear();
  model->set_family(v1::MODEL_FAMILY_LLAMA);
  model->set_vocab_size(kVocabulary);
  model->set_num_hidden_layers(kBlocks);
  model->set_hidden_size(16);
  model->set_num_attention_heads(4);
  model->set_num_key_value_heads(2);
  model->set_intermediate_size(24);
  model->set_max_position_embeddings(12);
  model->set_attention_dropout(0.1);
  return assignment;
}

}  // namespace headrace::testing
