// What reads bytes that others wrote, each as a function that takes any bytes at all. It must
// return: not crash, not hang, nor take memory that a number in the input asked for. What can be
// said of the outcome is checked there with FUZZ_CHECK.
//
// `tests/fuzz/run` gives each to libFuzzer (entry.cc); fuzz_corpus_test runs the inputs in corpus/,
// and small changes of them, in every build. A new one: a file here, a line in kFuzzTargets, a
// folder in corpus/ (make-corpus writes what is not text), a name in CMakeLists.txt.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace headrace {

void FuzzFrame(std::string_view input);    // frames of one stream, and who takes what they bring
void FuzzJobFile(std::string_view input);  // a job file's text
void FuzzMachine(std::string_view input);  // registrations and reports, in the job machine
void FuzzSafetensors(std::string_view input);  // a safetensors file
void FuzzStoredJob(std::string_view input);    // a job's row in the coordinator's database

struct FuzzTarget {
  const char* name;  // of its folder in corpus/
  void (*run)(std::string_view input);
};

inline constexpr FuzzTarget kFuzzTargets[] = {
    {"frame", &FuzzFrame},          {"job_file", &FuzzJobFile},
    {"machine", &FuzzMachine},      {"safetensors", &FuzzSafetensors},
    {"stored_job", &FuzzStoredJob},
};

}  // namespace headrace

#define FUZZ_CHECK(condition, what)                                                   \
  do {                                                                                \
    if (!(condition)) {                                                               \
      std::fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, what, #condition); \
      std::abort();                                                                   \
    }                                                                                 \
  } while (0)
