// For tests: the smallest job that passes ValidateJob.
#pragma once

#include <cstdint>
#include <string>

#include "headrace/v1/job.pb.h"

namespace headrace {

// Two steps; `stages` of 0: auto.
inline v1::JobSpec SmallJob(const std::string& name, int64_t stages) {
  v1::JobSpec spec;
  spec.set_name(name);
  v1::ModelSpec* model = spec.mutable_model();
  model->set_family(v1::MODEL_FAMILY_GPT2);
  model->set_vocab_size(256);
  model->set_n_layer(4);
  model->set_n_embd(16);
  model->set_n_head(2);
  model->set_n_positions(16);
  spec.mutable_data()->set_text("text.txt");
  spec.mutable_data()->set_tokenizer(v1::TOKENIZER_BYTE);
  v1::TrainingSpec* training = spec.mutable_training();
  training->set_steps(2);
  training->set_batch_size(4);
  training->set_micro_batches(2);
  training->set_sequence_length(16);
  training->mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_ADAMW);
  training->mutable_optimizer()->set_learning_rate(1e-3);
  spec.mutable_pipeline()->set_stages(stages);
  spec.mutable_recovery()->set_restart(v1::SWITCH_OFF);
  return spec;
}

}  // namespace headrace
