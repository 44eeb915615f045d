// Writes a job's initial weights, tokens and settings as the workers would have them, for a peer
// that trains the same (bench/peers):
//
//   peer_input JOB.yaml FOLDER
//
//   FOLDER/job.json     model (keys of the job file), training, and name and shape of each tensor
//   FOLDER/weights.bin  float32: all weights, in the order of "tensors"
//   FOLDER/tokens.bin   int32: [steps][batch][length + 1], each sequence and the token after it
//
// Numbers are little-endian.
#include <cstdint>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "client/dataset.h"
#include "client/job_file.h"
#include "common/file.h"
#include "common/status.h"
#include "common/token_file.h"
#include "plan/batch.h"
#include "plan/model.h"
#include "plan/stage_memory.h"
#include "worker/backend/arena.h"
#include "worker/backend/ops.h"
#include "worker/data/sampler.h"
#include "worker/layers/stage_model.h"
#include "worker/optimizer/optimizer.h"

namespace headrace {
namespace {

using Json = nlohmann::ordered_json;

template <typename T>
absl::Status Write(const std::string& path, const std::vector<T>& values) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(values.size() * sizeof(T)));
  file.close();
  return file ? absl::OkStatus() : absl::UnavailableError("cannot write " + path);
}

absl::Status RefuseOthers(const v1::JobSpec& spec, const Model& model) {
  const v1::OptimizerSpec& optimizer = spec.training().optimizer();
  if (model.family != ModelFamily::kGpt2) {
    return absl::InvalidArgumentError("model.family: the peers know gpt2 only");
  }
  if (model.embedding_dropout + model.attention_dropout + model.residual_dropout > 0) {
    return absl::InvalidArgumentError("model: dropout draws other masks in a peer; leave it out");
  }
  if (optimizer.kind() != v1::OPTIMIZER_KIND_ADAMW || optimizer.groups_size() > 0) {
    return absl::InvalidArgumentError("training.optimizer: the peers know adamw without groups");
  }
  return absl::OkStatus();
}

Json ModelKeys(const Model& model) {
  return {{"n_layer", model.layers},
          {"n_embd", model.width},
          {"n_head", model.heads},
          {"n_inner", model.mlp_width},
          {"n_positions", model.context},
          {"vocab_size", model.vocabulary},
          {"layer_norm_epsilon", model.norm_epsilon},
          {"tied", model.tied}};
}

Json TrainingKeys(const v1::TrainingSpec& training) {
  const v1::OptimizerSpec& optimizer = training.optimizer();
  std::vector<double> rates;
  for (int64_t step = 1; step <= training.steps(); ++step) {
    rates.push_back(LearningRate(training, step));
  }
  return {{"steps", training.steps()},
          {"batch_size", training.batch_size()},
          {"micro_batches", training.micro_batches()},
          {"sequence_length", training.sequence_length()},
          {"learning_rates", rates},
          {"weight_decay", optimizer.weight_decay()},
          {"beta1", optimizer.has_beta1() ? optimizer.beta1() : 0.9},
          {"beta2", optimizer.has_beta2() ? optimizer.beta2() : 0.999},
          {"epsilon", optimizer.has_epsilon() ? optimizer.epsilon() : 1e-8},
          {"clip_norm", training.clip_norm()}};
}

// Also appends name and shape of each to `names`.
absl::StatusOr<std::vector<float>> InitialWeights(const Model& model, uint64_t seed, Json* names) {
  StageShape shape;
  shape.model = model;
  shape.layers = BuildLayers(model);
  shape.largest = {1, 1};
  shape.training = false;
  const StageBytes bytes = StageMemory(shape, {});
  HEADRACE_ASSIGN_OR_RETURN(const std::unique_ptr<Arena> arena,
                            Arena::Create(bytes.weights + bytes.workspace));
  const std::unique_ptr<Ops> ops = CreateCpuOps(1);
  HEADRACE_ASSIGN_OR_RETURN(const std::unique_ptr<StageModel> stage,
                            StageModel::Create(shape, arena.get(), ops.get()));
  stage->Initialise(seed);
  std::vector<float> weights;
  for (const Parameter& parameter : stage->parameters()) {
    if (parameter.borrowed) continue;
    const float* const first = parameter.weight.f32();
    weights.insert(weights.end(), first, first + parameter.weight.elements());
    names->push_back({{"name", parameter.spec.name}, {"shape", parameter.spec.shape}});
  }
  return weights;
}

absl::StatusOr<std::vector<int32_t>> Tokens(const JobFile& job, const Model& model,
                                            const std::string& folder) {
  HEADRACE_ASSIGN_OR_RETURN(const PreparedDataset data, PrepareDataset(job, folder));
  HEADRACE_ASSIGN_OR_RETURN(const std::unique_ptr<TokenFile> file, TokenFile::Open(data.path));
  const v1::TrainingSpec& training = job.spec.training();
  const int64_t length = training.sequence_length();
  HEADRACE_ASSIGN_OR_RETURN(const Sampler sampler,
                            Sampler::Create(file.get(), job.spec.data(), length,
                                            training.batch_size(), model.vocabulary));
  std::vector<int32_t> ids(length), targets(length), all;
  for (int64_t step = 1; step <= training.steps(); ++step) {
    for (int64_t i = 0; i < training.batch_size(); ++i) {
      sampler.Training(step, i, 1, ids.data(), targets.data());
      all.insert(all.end(), ids.begin(), ids.end());
      all.push_back(targets.back());
    }
  }
  return all;
}

absl::Status Export(const std::string& path, const std::string& folder) {
  HEADRACE_ASSIGN_OR_RETURN(const JobFile job, ReadJobFile(path));
  HEADRACE_ASSIGN_OR_RETURN(const Model model, ResolveModel(job.spec.model()));
  HEADRACE_RETURN_IF_ERROR(RefuseOthers(job.spec, model));
  HEADRACE_RETURN_IF_ERROR(MakeDirectories(folder));
  Json document = {{"model", ModelKeys(model)},
                   {"training", TrainingKeys(job.spec.training())},
                   {"tensors", Json::array()}};
  HEADRACE_ASSIGN_OR_RETURN(
      const std::vector<float> weights,
      InitialWeights(model, job.spec.training().seed(), &document["tensors"]));
  HEADRACE_RETURN_IF_ERROR(Write(folder + "/weights.bin", weights));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, Tokens(job, model, folder));
  HEADRACE_RETURN_IF_ERROR(Write(folder + "/tokens.bin", tokens));
  std::ofstream out(folder + "/job.json");
  out << document.dump(1) << "\n";
  out.close();
  return out ? absl::OkStatus() : absl::UnavailableError("cannot write " + folder + "/job.json");
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: peer_input JOB.yaml FOLDER\n";
    return 2;
  }
  const absl::Status status = headrace::Export(argv[1], argv[2]);
  if (status.ok()) return 0;
  std::cerr << "peer_input: " << status.message() << "\n";
  return 1;
}
