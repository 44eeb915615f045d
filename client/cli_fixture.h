// The client against a coordinator of the test's own, without a terminal.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "client/cli.h"
#include "client/fake_coordinator.h"

namespace headrace {

struct Result {
  ExitCode code;
  std::string out, err;
};

// Jobs j1 (tiny, done), j2 (broken, failed) and j4 (endless, running); <dir_>/job.yaml can be
// submitted.
class CliTest : public ::testing::Test {
 protected:
  CliTest() {
    char name[] = "/tmp/headrace-cli-XXXXXX";
    dir_ = mkdtemp(name);
    unsetenv("HEADRACE_COORDINATOR");
    setenv("XDG_STATE_HOME", dir_.c_str(), 1);
    fake_ = std::make_unique<FakeCoordinator>(dir_ + "/c");
    v1::Job job;
    job.set_id("j1");
    job.set_name("tiny");
    job.set_state(v1::JOB_STATE_DONE);
    job.mutable_spec()->set_name("tiny");
    job.mutable_spec()->mutable_training()->set_steps(3);
    v1::ModelSpec* model = job.mutable_spec()->mutable_model();
    model->set_family(v1::MODEL_FAMILY_GPT2);
    model->set_vocab_size(128);
    model->set_n_layer(2);
    model->set_n_embd(8);
    model->set_n_head(2);
    model->set_n_positions(16);
    job.mutable_spec()->mutable_data()->set_tokenizer(v1::TOKENIZER_BYTE);
    job.mutable_plan()->set_stages(2);
    for (int s = 1; s <= 3; ++s) {
      v1::StepResult* step = job.add_steps();
      step->set_step(s);
      step->set_loss(1.0 / s);
    }
    done_ = job;
    fake_->AddJob(job);
    job.set_id("j2");
    job.set_name("broken");
    job.set_state(v1::JOB_STATE_FAILED);
    job.set_message(
        "loss became NaN at step 3: a message too long for a terminal of 80 columns, to its end");
    fake_->AddJob(job);
    job.set_id("j4");
    job.set_name("endless");
    job.set_state(v1::JOB_STATE_RUNNING);
    fake_->AddJob(job);
    std::ofstream(dir_ + "/text.txt")
        << "a text of more than sixteen bytes, and then some more of it";
    std::ofstream(dir_ + "/job.yaml")
        << "name: tiny\nmodel: {family: gpt2, vocab_size: 128, n_layer: 2, n_embd: 8, n_head: 2, "
           "n_positions: 16}\ndata: {text: text.txt, tokenizer: byte, validation_split: 0}\n"
           "training: {steps: 3, batch_size: 2, micro_batches: 2, sequence_length: 8, optimizer: "
           "{kind: adamw, learning_rate: 0.001}}\npipeline: {stages: 2}\n";
  }
  ~CliTest() override {
    fake_.reset();
    std::filesystem::remove_all(dir_);
  }

  // Runs a command line as a program would that has no terminal.
  Result Run(std::vector<std::string> arguments, Interrupt* interrupt = nullptr) {
    std::ostringstream out, err;
    Interrupt none;
    Environment environment;
    environment.console.out = &out;
    environment.console.err = &err;
    environment.interrupt = interrupt == nullptr ? &none : interrupt;
    environment.binary_dir = dir_;
    const ExitCode code = RunClient(arguments, environment);
    return {code, out.str(), err.str()};
  }
  // The same against the fake coordinator.
  Result Ask(std::vector<std::string> arguments, Interrupt* interrupt = nullptr) {
    for (const std::string& argument : {std::string("--coordinator"), fake_->address(),
                                        std::string("--state-dir"), dir_ + "/state"}) {
      arguments.push_back(argument);
    }
    return Run(std::move(arguments), interrupt);
  }

  std::string dir_;
  std::unique_ptr<FakeCoordinator> fake_;
  v1::Job done_;
};

}  // namespace headrace
