// libheadrace_cuda.so of a machine without a GPU: the backend's kernels and host code on the CPU
// emulation, products by the reference kernel. For tests, in a folder of its own, which workers are
// told by HEADRACE_CUDA_MODULE; nothing of it is in a shipped program.
//
// The device is what EMULATED_CUDA says, words separated by blanks:
//   memory=1048576            bytes of the device; default 1 GiB
//   capability=7              its compute capability's first number; default 9
//   gpu=1                     which GPU it is: workers that say the same are on one; default 0
//   fail=cudaStreamQuery@30   the call fails from its 30th time on, with …
//   error=719                 … this error; default cudaErrorUnknown
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>

#include "tests/cuda_emulation/grid.h"
#include "worker/backend/cuda/session.h"

namespace headrace::cuda {
namespace {

void ReadEnvironment() {
  const char* const settings = std::getenv("EMULATED_CUDA");
  std::istringstream words(settings == nullptr ? "" : settings);
  emulation::Options& options = emulation::options();
  options.shared_memory = true;
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    const std::string key = word.substr(0, equals), value = word.substr(equals + 1);
    if (key == "memory") options.memory_bytes = std::atoll(value.c_str());
    if (key == "capability") options.capability = std::atoi(value.c_str());
    if (key == "gpu") options.gpu = std::atoi(value.c_str());
    if (key == "error") options.fail_error = static_cast<cudaError_t>(std::atoi(value.c_str()));
    if (key == "fail") {
      options.fail_call = value.substr(0, value.find('@'));
      options.fail_after = std::atoi(value.substr(value.find('@') + 1).c_str());
    }
  }
}

std::unique_ptr<Gemm> ReferenceProducts(void*, size_t, bool, std::string*) {
  return CreateReferenceGemm();
}

Session* Open(const SessionOptions& options, Failure* failure) {
  return OpenSession(options, ReferenceProducts, failure).release();
}

constexpr Module kModule = {kModuleVersion, Open, ProbeSession};

}  // namespace
}  // namespace headrace::cuda

extern "C" __attribute__((visibility("default"))) const headrace::cuda::Module*
headrace_cuda_module() {
  static const bool read = (headrace::cuda::ReadEnvironment(), true);
  static_cast<void>(read);
  return &headrace::cuda::kModule;
}
