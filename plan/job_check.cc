#include "plan/job_check.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "plan/check_values.h"
#include "plan/model.h"
#include "plan/recovery_check.h"

namespace headrace {
namespace {

// Sane bounds: beyond these a value is a slip of the pen, and sums of sizes would no longer fit.
constexpr size_t kMaxNameLength = 63;
constexpr int64_t kMaxBatch = 1 << 20;
constexpr int64_t kMaxMicroBatches = 1 << 16;
constexpr int64_t kMaxTokensPerBatch = int64_t{1} << 31;
constexpr int64_t kMaxStages = 1 << 16;
constexpr int64_t kMaxCredits = 1 << 10;
constexpr double kMaxWaitS = 7 * 24 * 3600;
constexpr int kMaxGroups = 1000;

// "j12": as the coordinator numbers jobs.
bool LooksLikeAnId(const std::string& name) {
  return name.size() > 1 && name[0] == 'j' &&
         name.find_first_not_of("0123456789", 1) == std::string::npos;
}

absl::Status CheckName(const std::string& name) {
  const auto allowed = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
  };
  if (name.empty()) return BadValue("name", "missing", "a name for the job");
  if (LooksLikeAnId(name)) {
    return BadValue("name", absl::StrCat("\"", name.substr(0, kMaxNameLength), "\""),
                    "a name that does not look like a job's id");
  }
  if (name.size() <= kMaxNameLength && std::all_of(name.begin(), name.end(), allowed) &&
      absl::ascii_isalnum(static_cast<unsigned char>(name[0]))) {
    return absl::OkStatus();
  }
  std::string shown = name.substr(0, kMaxNameLength);
  std::replace_if(
      shown.begin(), shown.end(), [](char c) { return !absl::ascii_isprint(c); }, '?');
  return BadValue("name", absl::StrCat("\"", shown, "\""),
                  absl::StrCat("1 to ", kMaxNameLength,
                               " letters, digits, '.', '_' and '-', a letter or digit first"));
}

double ValidationSplit(const v1::DataSpec& data) {
  return data.has_validation_split() ? data.validation_split() : 0.1;
}

absl::Status CheckData(const v1::DataSpec& data) {
  if (data.text().empty() == data.tokens().empty()) {
    return BadValue("data.text", data.text().empty() ? "missing" : "set beside data.tokens",
                    "exactly one of data.text (a text file) and data.tokens (a .bin file)");
  }
  if (!data.text().empty()) {
    HEADRACE_RETURN_IF_ERROR(CheckEnum("data.tokenizer", data.tokenizer(),
                                       v1::Tokenizer_IsValid(data.tokenizer()), "byte"));
    if (data.token_type() != v1::TOKEN_TYPE_UNSPECIFIED) {
      return BadValue("data.token_type", "set beside data.text", "it only with data.tokens");
    }
  } else {
    HEADRACE_RETURN_IF_ERROR(CheckEnum("data.token_type", data.token_type(),
                                       v1::TokenType_IsValid(data.token_type()),
                                       "uint16 or uint32"));
    if (data.tokenizer() != v1::TOKENIZER_UNSPECIFIED) {
      return BadValue("data.tokenizer", "set beside data.tokens", "it only with data.text");
    }
  }
  return CheckShare("data.validation_split", data.validation_split());
}

absl::Status CheckGroups(const v1::OptimizerSpec& spec) {
  if (spec.groups_size() > kMaxGroups) {
    return BadValue("training.optimizer.groups", absl::StrCat(spec.groups_size(), " entries"),
                    absl::StrCat("at most ", kMaxGroups));
  }
  for (int i = 0; i < spec.groups_size(); ++i) {
    const v1::ParameterGroup& group = spec.groups(i);
    const std::string path = absl::StrCat("training.optimizer.groups[", i, "]");
    if (group.match().empty()) {
      return BadValue(path + ".match", "missing",
                      "a glob over parameter names, such as \"*.bias\"");
    }
    HEADRACE_RETURN_IF_ERROR(CheckNumber(path + ".weight_decay", group.weight_decay(), Low::kZero));
    HEADRACE_RETURN_IF_ERROR(
        CheckNumber(path + ".learning_rate_scale", group.learning_rate_scale(), Low::kZero));
  }
  return absl::OkStatus();
}

// A constant of one optimizer set for another would be ignored in silence.
absl::Status CheckOptimizerKeys(const v1::OptimizerSpec& spec) {
  const bool adamw = spec.kind() == v1::OPTIMIZER_KIND_ADAMW;
  const bool sgd = spec.kind() == v1::OPTIMIZER_KIND_SGD;
  const bool rmsprop = spec.kind() == v1::OPTIMIZER_KIND_RMSPROP;
  const struct {
    const char* key;
    bool set, belongs;
    const char* owners;
  } kKeys[] = {
      {"beta1", spec.has_beta1(), adamw, "adamw"},
      {"beta2", spec.has_beta2(), adamw, "adamw"},
      {"epsilon", spec.has_epsilon(), adamw || rmsprop, "adamw and rmsprop"},
      {"momentum", spec.has_momentum(), sgd || rmsprop, "sgd and rmsprop"},
      {"nesterov", spec.has_nesterov(), sgd, "sgd"},
      {"alpha", spec.has_alpha(), rmsprop, "rmsprop"},
  };
  for (const auto& key : kKeys) {
    if (key.set && !key.belongs) {
      return BadValue(absl::StrCat("training.optimizer.", key.key), "not a key of this optimizer",
                      absl::StrCat("it only with ", key.owners));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckOptimizer(const v1::OptimizerSpec& spec) {
  const std::string path = "training.optimizer.";
  HEADRACE_RETURN_IF_ERROR(CheckEnum(
      path + "kind", spec.kind(), v1::OptimizerKind_IsValid(spec.kind()), "adamw, sgd or rmsprop"));
  HEADRACE_RETURN_IF_ERROR(CheckOptimizerKeys(spec));
  HEADRACE_RETURN_IF_ERROR(
      CheckNumber(path + "learning_rate", spec.learning_rate(), Low::kAboveZero));
  HEADRACE_RETURN_IF_ERROR(CheckNumber(path + "weight_decay", spec.weight_decay(), Low::kZero));
  HEADRACE_RETURN_IF_ERROR(CheckShare(path + "beta1", spec.beta1()));
  HEADRACE_RETURN_IF_ERROR(CheckShare(path + "beta2", spec.beta2()));
  if (spec.has_epsilon()) {
    HEADRACE_RETURN_IF_ERROR(CheckNumber(path + "epsilon", spec.epsilon(), Low::kAboveZero));
  }
  HEADRACE_RETURN_IF_ERROR(CheckShare(path + "momentum", spec.momentum()));
  HEADRACE_RETURN_IF_ERROR(CheckShare(path + "alpha", spec.alpha()));
  if (spec.nesterov() && !(spec.momentum() > 0)) {
    return BadValue(path + "nesterov", "true", "it only with a momentum above 0");
  }
  return CheckGroups(spec);
}

// Reads training.optimizer too: what a rate falls to is below what it starts from.
absl::Status CheckLearningRate(const v1::TrainingSpec& training) {
  const v1::LearningRateSpec& spec = training.learning_rate();
  const std::string path = "training.learning_rate.";
  HEADRACE_RETURN_IF_ERROR(CheckOptionalEnum(path + "kind", spec.kind(),
                                             v1::LearningRateKind_IsValid(spec.kind()),
                                             "constant, linear, cosine or inverse_sqrt"));
  HEADRACE_RETURN_IF_ERROR(CheckRange(path + "warmup_steps", spec.warmup_steps(), 0, kMaxSteps));
  if (spec.kind() == v1::LEARNING_RATE_KIND_INVERSE_SQRT && spec.warmup_steps() == 0) {
    return BadValue(path + "warmup_steps", "0",
                    "1 or more: inverse_sqrt falls from the end of the warm-up on");
  }
  HEADRACE_RETURN_IF_ERROR(
      CheckNumber(path + "min_learning_rate", spec.min_learning_rate(), Low::kZero));
  if (spec.min_learning_rate() > training.optimizer().learning_rate()) {
    return BadValue(path + "min_learning_rate", absl::StrCat(spec.min_learning_rate()),
                    absl::StrCat("at most training.optimizer.learning_rate, which is ",
                                 training.optimizer().learning_rate()));
  }
  return absl::OkStatus();
}

absl::Status CheckTraining(const v1::TrainingSpec& training, const Model& model) {
  const std::string path = "training.";
  HEADRACE_RETURN_IF_ERROR(CheckRange(path + "steps", training.steps(), 1, kMaxSteps));
  HEADRACE_RETURN_IF_ERROR(CheckRange(path + "batch_size", training.batch_size(), 1, kMaxBatch));
  HEADRACE_RETURN_IF_ERROR(CheckRange(path + "micro_batches", training.micro_batches(), 1,
                                      std::min(training.batch_size(), kMaxMicroBatches),
                                      " (training.batch_size: a micro-batch has at least one "
                                      "sequence)"));
  HEADRACE_RETURN_IF_ERROR(CheckRange(path + "sequence_length", training.sequence_length(), 1,
                                      model.context, " (the model's context)"));
  if (training.batch_size() * training.sequence_length() > kMaxTokensPerBatch) {
    return BadValue(path + "batch_size", absl::StrCat(training.batch_size()),
                    absl::StrCat("at most ", kMaxTokensPerBatch, " tokens a batch; it has ",
                                 training.batch_size() * training.sequence_length()));
  }
  HEADRACE_RETURN_IF_ERROR(CheckOptimizer(training.optimizer()));
  HEADRACE_RETURN_IF_ERROR(CheckLearningRate(training));
  HEADRACE_RETURN_IF_ERROR(CheckNumber(path + "clip_norm", training.clip_norm(), Low::kZero));
  HEADRACE_RETURN_IF_ERROR(CheckRange(path + "eval_every", training.eval_every(), 0, kMaxSteps));
  if (training.has_eval_batches()) {
    HEADRACE_RETURN_IF_ERROR(
        CheckRange(path + "eval_batches", training.eval_batches(), 1, kMaxBatch));
  }
  HEADRACE_RETURN_IF_ERROR(CheckOptionalEnum(path + "precision", training.precision(),
                                             v1::Precision_IsValid(training.precision()),
                                             "fp32 or bf16"));
  if (training.bf16_emulate() && training.precision() != v1::PRECISION_BF16) {
    return BadValue(path + "bf16_emulate", "true", "it only with precision: bf16");
  }
  if (training.tf32() && training.precision() == v1::PRECISION_BF16) {
    return BadValue(path + "tf32", "true", "it only with precision: fp32");
  }
  return absl::OkStatus();
}

absl::Status CheckPipeline(const v1::PipelineSpec& pipeline, const Model& model) {
  const int64_t most = std::min(model.layers + 2, kMaxStages);
  if (pipeline.stages() != 0) {  // 0: auto
    HEADRACE_RETURN_IF_ERROR(CheckRange("pipeline.stages", pipeline.stages(), 1, most,
                                        " (the model's layers: embedding, blocks, head), or auto"));
  }
  HEADRACE_RETURN_IF_ERROR(CheckOptionalEnum("pipeline.schedule", pipeline.schedule(),
                                             v1::ScheduleKind_IsValid(pipeline.schedule()),
                                             "gpipe or 1f1b"));
  HEADRACE_RETURN_IF_ERROR(CheckOptionalEnum("pipeline.recompute", pipeline.recompute(),
                                             v1::RecomputeMode_IsValid(pipeline.recompute()),
                                             "always, except_last or never"));
  HEADRACE_RETURN_IF_ERROR(CheckOptionalEnum("pipeline.boundary_dtype", pipeline.boundary_dtype(),
                                             v1::BoundaryDtype_IsValid(pipeline.boundary_dtype()),
                                             "fp32 or bf16"));
  if (pipeline.boundary_dtype() == v1::BOUNDARY_DTYPE_BF16 && pipeline.stages() == 1) {
    return BadValue("pipeline.boundary_dtype", "bf16 beside pipeline.stages: 1",
                    "it only with 2 or more stages, or auto: one stage sends nothing");
  }
  HEADRACE_RETURN_IF_ERROR(CheckOptionalEnum("pipeline.transport", pipeline.transport(),
                                             v1::Transport_IsValid(pipeline.transport()),
                                             "auto, grpc, shm, cuda_ipc or nccl"));
  HEADRACE_RETURN_IF_ERROR(CheckRange("pipeline.credits", pipeline.credits(), 0, kMaxCredits));
  HEADRACE_RETURN_IF_ERROR(
      CheckNumber("pipeline.wait_timeout_s", pipeline.wait_timeout_s(), Low::kZero));
  if (pipeline.wait_timeout_s() > kMaxWaitS) {
    return BadValue("pipeline.wait_timeout_s", absl::StrCat(pipeline.wait_timeout_s()),
                    absl::StrCat("at most ", kMaxWaitS, " (a week)"));
  }
  return absl::OkStatus();
}

std::string NumTokens(int64_t n) { return absl::StrCat(n, n == 1 ? " token" : " tokens"); }

absl::Status CheckDataset(const v1::JobSpec& spec, const v1::Dataset& dataset, const Model& model) {
  const std::string path = spec.data().text().empty() ? "data.tokens" : "data.text";
  if (dataset.num_tokens() < 1) return BadValue(path, "no tokens", "a file that has some");
  if (dataset.max_token() >= model.vocabulary) {
    return BadValue(path, absl::StrCat("token id ", dataset.max_token()),
                    absl::StrCat("ids below model.vocab_size, which is ", model.vocabulary));
  }
  const int64_t validation = ValidationTokens(spec.data(), dataset.num_tokens());
  const double split = ValidationSplit(spec.data());
  const int64_t training = dataset.num_tokens() - validation;
  const int64_t needed = spec.training().sequence_length() + 1;
  const std::string expected = absl::StrCat(
      "at least ", needed, ": one sequence (training.sequence_length) and the token after it");
  if (training < needed) {
    return BadValue(path, absl::StrCat(NumTokens(training), " to train on"), expected);
  }
  if (split > 0 && validation < needed) {
    return BadValue(path,
                    absl::StrCat(NumTokens(validation), " to validate on (data.validation_split ",
                                 split, " of ", dataset.num_tokens(), ")"),
                    expected + "; a longer text, or a validation_split of 0");
  }
  return absl::OkStatus();
}

}  // namespace

int64_t ValidationTokens(const v1::DataSpec& data, int64_t num_tokens) {
  return static_cast<int64_t>(static_cast<double>(num_tokens) * ValidationSplit(data));
}

absl::Status ValidateJob(const v1::JobSpec& spec, const v1::Dataset* dataset) {
  HEADRACE_RETURN_IF_ERROR(CheckName(spec.name()));
  HEADRACE_ASSIGN_OR_RETURN(const Model model, ResolveModel(spec.model()));
  HEADRACE_RETURN_IF_ERROR(CheckData(spec.data()));
  HEADRACE_RETURN_IF_ERROR(CheckTraining(spec.training(), model));
  if (spec.training().eval_every() > 0 && ValidationSplit(spec.data()) == 0) {
    return BadValue("training.eval_every", absl::StrCat(spec.training().eval_every()),
                    "0, since data.validation_split is 0: there is nothing to evaluate on");
  }
  HEADRACE_RETURN_IF_ERROR(CheckPipeline(spec.pipeline(), model));
  HEADRACE_RETURN_IF_ERROR(CheckCheckpoint(spec.checkpoint()));
  HEADRACE_RETURN_IF_ERROR(CheckRecovery(spec.recovery(), spec.checkpoint()));
  return dataset == nullptr ? absl::OkStatus() : CheckDataset(spec, *dataset, model);
}

}  // namespace headrace
