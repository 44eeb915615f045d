#include "worker/backend/cuda/module.h"

#include <cstdio>
#include <memory>
#include <string>

#include "worker/backend/cuda/session.h"

namespace headrace::cuda {
namespace {

Session* Open(const SessionOptions& options, char* error, int64_t error_bytes) {
  std::string text;
  std::unique_ptr<Session> session = OpenSession(options, CreateCublasLtGemm, &text);
  std::snprintf(error, static_cast<size_t>(error_bytes), "%s", text.c_str());
  return session.release();
}

constexpr Module kModule = {kModuleVersion, Open};

}  // namespace
}  // namespace headrace::cuda

extern "C" __attribute__((visibility("default"))) const headrace::cuda::Module*
headrace_cuda_module() {
  return &headrace::cuda::kModule;
}
