// planted_bugs_FLAVOUR NAME [forward|reverse|random]: runs one planted error and says "ran to the
// end"; what the emulation or a sanitizer reports comes first. planted_bugs_test.cc runs it.
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "tests/cuda_emulation/planted_bugs.h"

namespace headrace::emulation {
namespace {

constexpr int kRows = 70, kColumns = 45;

struct Planted {
  const char* name;
  cudaError_t (*run)(float*, const float*, int, int);
};
constexpr Planted kPlanted[] = {
    {"none", RunPlanted<Bug::kNone>},
    {"no-barrier", RunPlanted<Bug::kNoBarrier>},
    {"no-barrier-before-reuse", RunPlanted<Bug::kNoBarrierBeforeReuse>},
    {"no-warp-barrier", RunPlanted<Bug::kNoWarpBarrier>},
    {"shared-out-of-bounds", RunPlanted<Bug::kSharedOutOfBounds>},
    {"global-out-of-bounds", RunPlanted<Bug::kGlobalOutOfBounds>},
    {"divergent-barrier", RunPlanted<Bug::kDivergentBarrier>},
    {"shuffle-in-half-a-warp", RunPlanted<Bug::kShuffleInHalfAWarp>},
};

int Run(const Planted& planted) {
  const size_t count = kRows * kColumns, bytes = count * sizeof(float);
  std::vector<float> in(count), out(count);
  for (size_t i = 0; i < count; ++i) in[i] = static_cast<float>(i * 7919 % 1009);
  void *device_in = nullptr, *device_out = nullptr;
  cudaMalloc(&device_in, bytes);
  cudaMalloc(&device_out, bytes);
  cudaMemcpy(device_in, in.data(), bytes, cudaMemcpyHostToDevice);
  planted.run(static_cast<float*>(device_out), static_cast<const float*>(device_in), kRows,
              kColumns);
  const cudaError_t error = cudaMemcpy(out.data(), device_out, bytes, cudaMemcpyDeviceToHost);
  cudaFree(device_in);
  cudaFree(device_out);
  if (error != cudaSuccess) {
    std::printf("%s: %s\n", cudaGetErrorName(error), cudaGetErrorString(error));
    return 1;
  }
  if (std::strcmp(planted.name, "no-barrier") == 0) {
    for (int c = 0; c < kColumns; ++c) {
      for (int r = 0; r < kRows; ++r) {
        if (out[static_cast<size_t>(c * kRows + r)] == in[static_cast<size_t>(r * kColumns + c)]) {
          continue;
        }
        std::printf("wrong values\n");
        return 1;
      }
    }
  }
  std::printf("ran to the end\n");
  return 0;
}

}  // namespace
}  // namespace headrace::emulation

int main(int argc, char** argv) {
  namespace emulation = headrace::emulation;
  if (argc > 2 && std::string(argv[2]) == "reverse") {
    emulation::options().order = emulation::Order::kReverse;
  }
  if (argc > 2 && std::string(argv[2]) == "random") {
    emulation::options().order = emulation::Order::kRandom;
  }
  for (const auto& planted : emulation::kPlanted) {
    if (argc > 1 && std::string(argv[1]) == planted.name) return emulation::Run(planted);
  }
  std::fprintf(stderr, "usage: planted_bugs NAME [forward|reverse|random]\n");
  return 2;
}
