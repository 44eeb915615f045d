// What the fuzzer has found, once more, in every build; and small changes of it, always the same
// ones. Memory: no one piece may be larger than an input of these sizes explains.
#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "common/file.h"
#include "tests/fuzz/fuzz_targets.h"

namespace {

// Of one allocation. A slot of the frame target's arena is not one: it is mapped.
constexpr size_t kMostBytes = size_t{4} << 20;
std::atomic<size_t> largest{0};

[[maybe_unused]] void* Allocate(size_t bytes, size_t alignment) {
  size_t seen = largest.load(std::memory_order_relaxed);
  while (bytes > seen && !largest.compare_exchange_weak(seen, bytes)) {
  }
  void* p = alignment > alignof(std::max_align_t)
                ? std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment)
                : std::malloc(bytes > 0 ? bytes : 1);
  if (p == nullptr) std::abort();
  return p;
}

}  // namespace

#ifndef __SANITIZE_ADDRESS__  // which has its own, and a limit of its own
void* operator new(size_t bytes) { return Allocate(bytes, 1); }
void* operator new[](size_t bytes) { return Allocate(bytes, 1); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return Allocate(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }
#endif

namespace headrace {
namespace {

constexpr int kChangesPerInput = 300;

std::vector<std::string> Corpus(const std::string& target) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator("tests/fuzz/corpus/" + target)) {
    paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

// Cuts, repeats, or overwrites with what lengths and counts like least.
std::string Changed(std::string input, std::mt19937* random) {
  if (input.empty()) return input;
  const size_t at = (*random)() % input.size();
  switch ((*random)() % 4) {
    case 0:
      return input.substr(0, at);
    case 1:
      return input.substr(0, at) + input.substr(at / 2);
    case 2:
      input[at] = static_cast<char>((*random)());
      return input;
    default:
      for (size_t i = at; i < std::min(input.size(), at + 1 + (*random)() % 9); ++i) {
        input[i] = static_cast<char>(0xff);
      }
      return input;
  }
}

class FuzzCorpusTest : public testing::TestWithParam<FuzzTarget> {};

TEST_P(FuzzCorpusTest, PassesWithSmallChanges) {
  google::protobuf::SetLogHandler(nullptr);
  const FuzzTarget& target = GetParam();
  const std::vector<std::string> paths = Corpus(target.name);
  ASSERT_FALSE(paths.empty());
  std::mt19937 random(1);
  for (const std::string& path : paths) {
    SCOPED_TRACE(path);
    const auto input = ReadFile(path);
    ASSERT_TRUE(input.ok()) << input.status();
    largest = 0;
    target.run(*input);
    for (int i = 0; i < kChangesPerInput; ++i) target.run(Changed(*input, &random));
    EXPECT_LE(largest.load(), kMostBytes) << "at once, for an input of " << input->size();
  }
}

INSTANTIATE_TEST_SUITE_P(Target, FuzzCorpusTest, testing::ValuesIn(kFuzzTargets),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace headrace
