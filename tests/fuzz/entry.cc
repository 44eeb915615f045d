// libFuzzer's entry: to the target that the environment names.
#include <google/protobuf/stubs/logging.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tests/fuzz/fuzz_targets.h"

namespace {

const headrace::FuzzTarget* chosen = nullptr;

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* name = std::getenv("HEADRACE_FUZZ_TARGET");
  for (const headrace::FuzzTarget& target : headrace::kFuzzTargets) {
    if (name != nullptr && std::string_view(name) == target.name) chosen = &target;
  }
  if (chosen == nullptr) {
    std::fputs("fuzzer: HEADRACE_FUZZ_TARGET names no target of fuzz_targets.h\n", stderr);
    std::exit(2);
  }
  // What cannot be parsed is what this is about, and not worth a line each.
  google::protobuf::SetLogHandler(nullptr);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  chosen->run(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
