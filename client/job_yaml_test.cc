#include "client/job_yaml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/philox.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

constexpr char kGood[] = R"(name: tiny
model:
  family: gpt2
  n_layer: 2
  vocab_size: 256
  tie_word_embeddings: true
  layer_norm_epsilon: 1e-5
data:
  text: 'data/text.txt'
  tokenizer: byte
  seed: 18446744073709551615
training:
  steps: 9007199254740993
  optimizer:
    kind: adamw
    learning_rate: 3e-4
    groups:
      - match: "*.bias"
        weight_decay: 0
      - {match: "wte", learning_rate_scale: 0.5}
pipeline:
  stages: auto
  schedule: 1f1b
  recompute: except_last
  transport: shm
checkpoint:
  every_minutes: 0
  replicate: off
recovery:
  restart: off
  elastic: auto
  on_nan: rollback
)";

absl::Status Parse(const std::string& text, v1::JobSpec* spec,
                   std::map<std::string, int>* lines = nullptr) {
  std::map<std::string, int> unused;
  return ParseJobYaml(text, "job.yaml", spec, lines == nullptr ? &unused : lines);
}

TEST(JobYaml, ReadsEveryKindOfValueExactly) {
  v1::JobSpec spec;
  ASSERT_EQ(Parse(kGood, &spec), absl::OkStatus());
  EXPECT_EQ(spec.name(), "tiny");
  EXPECT_EQ(spec.model().family(), v1::MODEL_FAMILY_GPT2);
  EXPECT_EQ(spec.model().n_layer(), 2);
  EXPECT_TRUE(spec.model().tie_word_embeddings());
  EXPECT_EQ(spec.model().layer_norm_epsilon(), 1e-5);
  EXPECT_FALSE(spec.model().has_rope_theta());
  EXPECT_EQ(spec.data().text(), "data/text.txt");
  EXPECT_EQ(spec.data().tokenizer(), v1::TOKENIZER_BYTE);
  EXPECT_TRUE(spec.checkpoint().has_every_minutes());
  EXPECT_EQ(spec.checkpoint().every_minutes(), 0);
  EXPECT_FALSE(spec.checkpoint().has_keep_last());
  EXPECT_EQ(spec.checkpoint().replicate(), v1::REPLICATION_OFF);
  EXPECT_EQ(spec.recovery().restart(), v1::SWITCH_OFF);  // a truth value to other readers of YAML
  EXPECT_EQ(spec.recovery().elastic(), v1::SWITCH_AUTO);
  EXPECT_EQ(spec.recovery().on_nan(), v1::NAN_POLICY_ROLLBACK);
  EXPECT_EQ(spec.data().seed(), 18446744073709551615u);
  EXPECT_EQ(spec.training().steps(), 9007199254740993);  // 2^53 + 1: no double on the way
  EXPECT_EQ(spec.training().optimizer().learning_rate(), 3e-4);
  ASSERT_EQ(spec.training().optimizer().groups_size(), 2);
  EXPECT_EQ(spec.training().optimizer().groups(0).match(), "*.bias");
  EXPECT_TRUE(spec.training().optimizer().groups(0).has_weight_decay());
  EXPECT_EQ(spec.training().optimizer().groups(1).learning_rate_scale(), 0.5);
  EXPECT_EQ(spec.pipeline().stages(), 0);
  EXPECT_EQ(spec.pipeline().schedule(), v1::SCHEDULE_KIND_1F1B);
  EXPECT_EQ(spec.pipeline().recompute(), v1::RECOMPUTE_MODE_EXCEPT_LAST);
  EXPECT_EQ(spec.pipeline().transport(), v1::TRANSPORT_SHM);
}

TEST(JobYaml, RemembersTheLineOfEveryKey) {
  v1::JobSpec spec;
  std::map<std::string, int> lines;
  ASSERT_EQ(Parse(kGood, &spec, &lines), absl::OkStatus());
  EXPECT_EQ(lines.at("name"), 1);
  EXPECT_EQ(lines.at("model"), 2);
  EXPECT_EQ(lines.at("model.n_layer"), 4);
  EXPECT_EQ(lines.at("training.optimizer.learning_rate"), 16);
  EXPECT_EQ(lines.at("training.optimizer.groups[0].match"), 18);
  EXPECT_EQ(lines.at("training.optimizer.groups[1].learning_rate_scale"), 20);
  EXPECT_EQ(lines.at("pipeline.recompute"), 24);
}

TEST(JobYaml, ATagThatSaysWhatTheValueIsAnywayIsFine) {
  v1::JobSpec spec;
  ASSERT_EQ(
      Parse("name: !!str 5\ntraining: {steps: !!int 7, clip_norm: !!float 0.5, seed: 0}\n", &spec),
      absl::OkStatus());
  EXPECT_EQ(spec.name(), "5");
  EXPECT_EQ(spec.training().steps(), 7);
  EXPECT_EQ(spec.training().clip_norm(), 0.5);
}

TEST(JobYaml, FollowsAnchorsAndComments) {
  v1::JobSpec spec;
  ASSERT_EQ(Parse("# a job\ntraining: {steps: &n 7, batch_size: *n} # seven\n", &spec),
            absl::OkStatus());
  EXPECT_EQ(spec.training().batch_size(), 7);
}

struct BadCase {
  const char* name;
  std::string text;
  const char* message;  // whole, or its end after "…"
};

std::string Training(const std::string& line) { return "training:\n  " + line + "\n"; }

std::vector<BadCase> BadCases() {
  return {
      {"empty", "",
       "job.yaml:1: the file is empty; expected the keys name, model, data, training, "
       "pipeline"},
      {"only a comment", "# nothing\n", "job.yaml:1: the file is empty; expected"},
      {"null document", "~\n", "job.yaml:1: the file is empty; expected"},
      {"not YAML", "name: [1, 2\nmodel: }", "job.yaml:2: not YAML: "},
      {"a tab", "name: x\nmodel:\n\tfamily: gpt2\n", "job.yaml:3: not YAML: "},
      {"a stray comma", ",am\n", "job.yaml:1: "},  // yaml-cpp's LoadAll never returns from this
      {"prose", "train me a model, please\n",
       "job.yaml:1: not a list of keys: the file is the text 'train me a model, please'; expected"},
      {"a list", "- name: x\n", "job.yaml:1: not a list of keys: the file is a list; expected"},
      {"two documents", "name: a\n---\nname: b\n", "job.yaml:2: a second document begins"},
      {"not UTF-8", "name: \xff\xfe\n", "job.yaml:1: not UTF-8 text"},
      {"unknown section", "nmae: x\n",
       "job.yaml:1: nmae: unknown key, did you mean name?; expected one of name, model, data, "
       "training, pipeline"},
      {"unknown key", "model:\n  family: gpt2\n  n_layers: 2\n",
       "job.yaml:3: model.n_layers: unknown key, did you mean n_layer?; expected one of family"},
      {"half a key", Training("batch: 2"),
       "job.yaml:2: training.batch: unknown key, did you mean batch_size?"},
      {"key of another section", "pipeline:\n  micro_batches: 2\n",
       "job.yaml:2: pipeline.micro_batches: unknown key, did you mean training.micro_batches?"},
      {"key nobody knows", Training("frobnicate: 2"),
       "job.yaml:2: training.frobnicate: unknown key; expected one of steps, batch_size"},
      {"number as key", "1: 2\n", "job.yaml:1: 1: unknown key; expected one of name"},
      {"list as key", "? [a, b]\n: 1\n", "job.yaml:1: a key is not a word; expected one of name"},
      {"merge key", "model: &m {family: gpt2}\ndata:\n  <<: *m\n", "job.yaml:3: data.<<: unknown"},
      {"a number tagged as text", Training("steps: !!str 5"),
       "job.yaml:2: training.steps: is the text '5'; expected a whole number"},
      {"a rate tagged as text", "training: {optimizer: {learning_rate: !!str 0.1}}\n",
       "job.yaml:1: training.optimizer.learning_rate: is the text '0.1'; expected a number"},
      {"an unknown tag", Training("steps: !five 5"),
       "job.yaml:2: training.steps: is the text '5'; expected a whole number"},
      {"a leading zero", Training("steps: 010"),
       "job.yaml:2: training.steps: is 010, octal to some readers of YAML and decimal to others; "
       "expected it without the leading 0"},
      {"a leading zero behind a sign", Training("steps: -07"), "training.steps: is -07, octal"},
      {"a leading zero of a fraction", Training("clip_norm: 01.5"),
       "training.clip_norm: is 01.5, octal"},
      {"key twice", "training:\n  steps: 1\n  seed: 2\n  steps: 3\n",
       "job.yaml:4: training.steps: given twice, first in line 2; expected it once"},
      {"section twice", "name: a\ndata: {seed: 1}\nname: b\n",
       "job.yaml:3: name: given twice, first in line 1"},
      {"missing value", Training("steps:"),
       "job.yaml:2: training.steps: has no value; expected a whole number"},
      {"missing section", "name: a\nmodel:\n",
       "job.yaml:2: model: has no value; expected a section with the keys family, vocab_size"},
      {"missing word", "pipeline:\n  schedule: ~\n",
       "job.yaml:2: pipeline.schedule: has no value; expected one of gpipe, 1f1b"},
      {"text for a number", Training("steps: many"),
       "job.yaml:2: training.steps: is the text 'many'; expected a whole number"},
      {"quoted number", Training("steps: '10'"),
       "job.yaml:2: training.steps: is the text '10'; expected a whole number"},
      {"fraction", Training("steps: 1.5"),
       "job.yaml:2: training.steps: is the number 1.5; expected a whole number"},
      {"exponent", Training("steps: 1e3"),
       "job.yaml:2: training.steps: is the number 1e3; expected a whole number"},
      {"too large", Training("steps: 99999999999999999999"),
       "job.yaml:2: training.steps: 99999999999999999999 is out of range; expected a whole number "
       "below 2^63"},
      {"negative seed", Training("seed: -1"),
       "job.yaml:2: training.seed: -1 is out of range; expected a whole number from 0 below 2^64"},
      {"list for a number", Training("steps: [1]"),
       "job.yaml:2: training.steps: is a list; expected a whole number"},
      {"section for a number", Training("steps: {a: 1}"),
       "job.yaml:2: training.steps: is a section; expected a whole number"},
      {"NaN learning rate", Training("optimizer: {learning_rate: .nan}"),
       "job.yaml:2: training.optimizer.learning_rate: is .nan; expected a finite number"},
      {"nan spelt plainly", Training("optimizer: {learning_rate: nan}"),
       "job.yaml:2: training.optimizer.learning_rate: is nan; expected a finite number"},
      {"infinite", Training("clip_norm: .inf"),
       "job.yaml:2: training.clip_norm: is .inf; expected a finite number"},
      {"beyond double", Training("clip_norm: 1e999"),
       "job.yaml:2: training.clip_norm: is 1e999; expected a finite number"},
      {"text for a double", Training("clip_norm: one"),
       "job.yaml:2: training.clip_norm: is the text 'one'; expected a number"},
      {"text for a flag", "model:\n  tie_word_embeddings: yes\n",
       "job.yaml:2: model.tie_word_embeddings: is the text 'yes'; expected true or false"},
      {"number for text", "name: 12\n",
       "job.yaml:1: name: is 12; expected text (put it in quotes)"},
      {"empty text", "name: ''\n", "job.yaml:1: name: is empty; expected text"},
      {"control character", "name: \"a\\0b\"\n", "job.yaml:1: name: holds a control character"},
      {"list for text", "name: [a]\n", "job.yaml:1: name: is a list; expected text"},
      {"text for a section", "model: gpt2\n",
       "job.yaml:1: model: is the text 'gpt2'; expected a section with the keys family"},
      {"list for a section", "model:\n  - family: gpt2\n",
       "job.yaml:2: model: is a list; expected"},
      {"section for a list", Training("optimizer: {groups: {match: a}}"),
       "job.yaml:2: training.optimizer.groups: is a section; expected a list of sections with the "
       "keys match, weight_decay, learning_rate_scale"},
      {"words in a list", Training("optimizer: {groups: [a]}"),
       "job.yaml:2: training.optimizer.groups[0]: is not a section; expected one with the keys "
       "match"},
      {"list within itself", Training("optimizer: {groups: &g [*g]}"), "job.yaml:2: "},
      {"wrong word", "pipeline:\n  schedule: 1fib\n",
       "job.yaml:2: pipeline.schedule: is '1fib', did you mean 1f1b?; expected one of gpipe, 1f1b"},
      {"proto's own spelling", "model:\n  family: MODEL_FAMILY_GPT2\n",
       "job.yaml:2: model.family: is 'MODEL_FAMILY_GPT2'; expected one of gpt2, llama"},
      {"the unspecified word", "pipeline:\n  recompute: unspecified\n",
       "job.yaml:2: pipeline.recompute: is 'unspecified'; expected one of always, except_last, "
       "never"},
      {"no stages", "pipeline:\n  stages: 0\n",
       "job.yaml:2: pipeline.stages: is the number 0; expected auto or a whole number from 1"},
      {"stages by a wrong word", "pipeline:\n  stages: all\n",
       "job.yaml:2: pipeline.stages: is the text 'all'; expected auto or a whole number from 1"},
      {"deep nesting", std::string(100000, '['), "job.yaml:1: not YAML: "},
      {"deep sections", std::string(100000, '{'), "job.yaml:1: not YAML: "},
  };
}

TEST(JobYaml, SaysFileLineKeyAndWhatWasExpected) {
  for (const BadCase& c : BadCases()) {
    v1::JobSpec spec;
    const absl::Status status = Parse(c.text, &spec);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message)) << c.name;
  }
}

TEST(JobYaml, SurvivesAnyBytes) {
  const std::string good = kGood;
  constexpr char kAlphabet[] =
      "{}[]:,-&*!|>'\"%@`#?~ \t\n\0\xff"
      "ab01";
  for (uint32_t round = 0; round < 3000; ++round) {
    std::string text = good;
    const RandomStream stream = MakeStream(7, RandomPurpose::kData, round, 0, 0);
    const uint32_t edits = 1 + stream.Block(0)[0] % 8;
    for (uint32_t e = 1; e <= edits; ++e) {
      const PhiloxBlock r = stream.Block(e);
      text[r[0] % text.size()] = kAlphabet[r[1] % (sizeof(kAlphabet) - 1)];
      if (r[2] % 4 == 0) text.resize(1 + r[3] % text.size());
    }
    v1::JobSpec spec;
    const absl::Status status = Parse(text, &spec);
    if (!status.ok()) {
      EXPECT_THAT(std::string(status.message()), HasSubstr("job.yaml:")) << text;
    }
  }
}

}  // namespace
}  // namespace headrace
