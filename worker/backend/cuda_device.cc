#include "worker/backend/cuda_device.h"

#include <dlfcn.h>
#include <limits.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status.h"

namespace headrace {
namespace {

constexpr char kLibrary[] = "libheadrace_cuda.so";
constexpr absl::Duration kCopyTime = absl::Minutes(1);

class CudaDevice final : public ComputeDevice {
 public:
  CudaDevice(std::unique_ptr<cuda::Session> session, const DeviceNeeds& needs)
      : session_(std::move(session)),
        arena_(Arena::Over(session_->memory(), needs.arena_bytes)),
        staging_(Arena::Over(session_->pinned(), needs.staging_bytes)) {}
  ~CudaDevice() override {
    // CUDA's own ends of things wait for the device without a deadline, and a lost one answers
    // nobody.
    if (!session_->lost()) session_->Wait(absl::ToDoubleSeconds(kCopyTime));
    if (session_->lost()) session_.release();
  }

  // The ops' own memory, at the start of the arena, where the session expects it.
  absl::Status CarveForOps(int64_t product_bytes, int64_t scratch_bytes) {
    HEADRACE_RETURN_IF_ERROR(arena_
                                 ->Carve(MemoryKind::kWorkspace, "workspace of products",
                                         ElementType::kFloat32, {product_bytes / 4})
                                 .status());
    return arena_
        ->Carve(MemoryKind::kWorkspace, "scratch memory of ops", ElementType::kFloat32,
                {scratch_bytes / 4})
        .status();
  }

  Arena* arena() override { return arena_.get(); }
  Ops* ops() override { return session_->ops(); }
  bool in_host_memory() const override { return false; }
  Arena* staging() override { return staging_.get(); }
  int64_t pinned_bytes() const override { return session_->pinned_bytes(); }

  absl::Status ToDevice(void* device, const void* host, int64_t bytes,
                        std::string_view what) override {
    if (session_->Write(device, host, bytes, absl::ToDoubleSeconds(kCopyTime))) {
      return absl::OkStatus();
    }
    return Annotate(Check(), what);
  }
  absl::Status ToHost(void* host, const void* device, int64_t bytes,
                      std::string_view what) override {
    if (session_->Read(host, device, bytes, absl::ToDoubleSeconds(kCopyTime))) {
      return absl::OkStatus();
    }
    return Annotate(Check(), what);
  }
  absl::Status Wait(absl::Duration timeout) override {
    session_->Wait(absl::ToDoubleSeconds(timeout));
    return Check();
  }
  absl::Status Check() const override {
    const char* const error = session_->error();
    if (error[0] == '\0') return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat(error, session_->lost() ? "; the device is lost to this process" : ""));
  }
  bool lost() const override { return session_->lost(); }
  LinkDevice* links() override { return session_->links(); }

 private:
  std::unique_ptr<cuda::Session> session_;
  const std::unique_ptr<Arena> arena_;
  const std::unique_ptr<Arena> staging_;
};

absl::StatusOr<const cuda::Module*> Open(const std::string& path) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("the CUDA module cannot be opened: ", dlerror()));
  }
  const auto entry = reinterpret_cast<const cuda::Module* (*)()>(dlsym(library, "headrace_cuda_module"));
  if (entry == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is no CUDA module of Headrace"));
  }
  const cuda::Module* const module = entry();
  if (module->version != cuda::kModuleVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, " is of another version of Headrace: its interface has number ", module->version,
        ", this worker's ", cuda::kModuleVersion));
  }
  return module;
}

}  // namespace

std::vector<std::string> CudaModulePaths() {
  if (const char* path = std::getenv("HEADRACE_CUDA_MODULE"); path != nullptr && *path != '\0') {
    return {path};
  }
  char self[PATH_MAX] = "";
  const ssize_t size = readlink("/proc/self/exe", self, sizeof(self) - 1);
  const std::string folder =
      std::filesystem::path(size > 0 ? std::string(self, size) : ".").parent_path().string();
  return {absl::StrCat(folder, "/", kLibrary), absl::StrCat(folder, "/../lib/headrace/", kLibrary),
          absl::StrCat(folder, "/../lib/", kLibrary)};
}

absl::StatusOr<const cuda::Module*> OpenCudaModule(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    std::error_code ignored;
    if (std::filesystem::exists(path, ignored)) return Open(path);
  }
  return absl::FailedPreconditionError(
      absl::StrCat("the CUDA module is not installed: there is no ", absl::StrJoin(paths, ", no ")));
}

DeviceOpener CudaOpener(const cuda::Module* module, int index) {
  return [module, index](
             const DeviceNeeds& needs) -> absl::StatusOr<std::unique_ptr<ComputeDevice>> {
    cuda::SessionOptions options;
    options.device = index;
    options.memory_bytes = needs.arena_bytes;
    options.pinned_bytes = needs.staging_bytes;
    options.host = needs.shared;
    options.host_bytes = needs.shared_bytes;
    options.product_bytes = needs.product_bytes;
    options.scratch_bytes = needs.scratch_bytes;
    options.bf16 = needs.precision != Precision::kFp32;
    options.tf32 = needs.tf32;
    cuda::Failure failure = {};
    std::unique_ptr<cuda::Session> session(module->open(options, &failure));
    if (session == nullptr) {
      const std::string text = absl::StrCat("cuda:", index, ": ", failure.text);
      if (failure.lost) {
        return absl::UnavailableError(absl::StrCat(text, "; the device is lost to this process"));
      }
      return failure.no_memory ? absl::ResourceExhaustedError(text)
                               : absl::FailedPreconditionError(text);
    }
    auto device = std::make_unique<CudaDevice>(std::move(session), needs);
    HEADRACE_RETURN_IF_ERROR(device->CarveForOps(options.product_bytes, options.scratch_bytes));
    return device;
  };
}

}  // namespace headrace
