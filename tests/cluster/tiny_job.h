// Small jobs for tests: a model of a few thousand weights over a text of a few thousand bytes.
#pragma once

#include <cstdint>
#include <string>

namespace headrace {

struct TinyJob {
  std::string name = "tiny";
  std::string family = "gpt2";
  int layers = 2;  // blocks; the model has two layers more
  int width = 32;
  int heads = 2;
  int context = 16;
  bool tied = true;
  double dropout = 0.1;  // gpt2: all three
  int64_t steps = 4;
  int batch = 6;
  int micro_batches = 3;
  int length = 12;
  double learning_rate = 0.003;
  double clip_norm = 1;
  int eval_every = 0;
  int stages = 2;  // 0: auto
  std::string schedule = "gpipe";
  std::string recompute = "always";
  std::string transport = "auto";
  std::string more_training;  // further lines, indented by two
  bool restart = false;       // recovery.restart: off unless a test is about recovery
  std::string more_recovery;  // further lines, indented by two
  std::string checkpoint;     // the section's lines, indented by two; empty: none are made
  std::string text = "tiny.txt";
};

// The job file. Its text is named relative to it: write TinyText() there.
std::string JobFileText(const TinyJob& job);
// Some 20 KB of the kind of sentence a tiny model can begin to learn.
std::string TinyText();

}  // namespace headrace
