#include "worker/backend/cuda/module.h"

#include <memory>

#include "worker/backend/cuda/session.h"

namespace headrace::cuda {
namespace {

Session* Open(const SessionOptions& options, Failure* failure) {
  return OpenSession(options, CreateCublasLtGemm, failure).release();
}

constexpr Module kModule = {kModuleVersion, Open, ProbeSession};

}  // namespace
}  // namespace headrace::cuda

extern "C" __attribute__((visibility("default"))) const headrace::cuda::Module*
headrace_cuda_module() {
  return &headrace::cuda::kModule;
}
