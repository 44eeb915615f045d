#include "worker/checkpoint/weights_slice.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/safetensors.h"
#include "common/sha256.h"
#include "common/status.h"

namespace headrace {
namespace {

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

struct Found {
  const SafetensorsFile* file = nullptr;
  const NamedTensor* tensor = nullptr;  // null: there is none
};

Found Find(const std::vector<std::unique_ptr<SafetensorsFile>>& files, const std::string& name) {
  for (const auto& file : files) {
    for (const NamedTensor& tensor : file->tensors()) {
      if (tensor.name == name) return {file.get(), &tensor};
    }
  }
  return {};
}

}  // namespace

absl::StatusOr<v1::WeightsSlice> WriteWeightsSlice(const std::string& path,
                                                   const std::vector<Parameter>& parameters,
                                                   ComputeDevice* device) {
  std::vector<NamedTensor> tensors;
  for (const Parameter& parameter : parameters) {
    if (parameter.borrowed) continue;
    tensors.push_back({parameter.spec.name, parameter.spec.shape, parameter.weight.f32()});
  }
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  Sha256 hash;
  v1::WeightsSlice slice;
  const auto append = [&](std::string_view bytes) {
    hash.Update(bytes);
    slice.set_size_bytes(slice.size_bytes() + static_cast<int64_t>(bytes.size()));
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  };
  append(SafetensorsHeader(tensors, {{"format", "pt"}}));
  absl::Status read;
  for (const Parameter& parameter : parameters) {
    if (parameter.borrowed || !read.ok()) continue;
    read = VisitBytes(device, parameter.weight, parameter.spec.name, append);
  }
  file.close();
  if (!read.ok()) {
    std::remove(path.c_str());
    return read;
  }
  if (!file) {
    const absl::Status failed =
        absl::ErrnoToStatus(errno, absl::StrCat("cannot write weights to ", path));
    std::remove(path.c_str());
    return failed;
  }
  slice.set_sha256(hash.Finish());
  return slice;
}

absl::Status LoadWeights(const std::vector<std::string>& paths, std::vector<Parameter>* parameters,
                         ComputeDevice* device) {
  std::vector<std::unique_ptr<SafetensorsFile>> files;
  for (const std::string& path : paths) {
    HEADRACE_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsFile> file, SafetensorsFile::Open(path));
    files.push_back(std::move(file));
  }
  for (Parameter& parameter : *parameters) {
    const auto [file, tensor] =
        Find(files, parameter.borrowed ? parameter.spec.owner : parameter.spec.name);
    if (tensor == nullptr) {
      return absl::NotFoundError(
          absl::StrCat("the weights have no tensor '", parameter.spec.name, "'"));
    }
    if (tensor->shape != parameter.spec.shape) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor '", parameter.spec.name, "' has shape ", ShapeText(tensor->shape),
                       ", expected ", ShapeText(parameter.spec.shape)));
    }
    if (device == nullptr) {
      std::memcpy(parameter.weight.data, tensor->data, parameter.weight.bytes());
    } else {
      HEADRACE_RETURN_IF_ERROR(device->ToDevice(parameter.weight.data, tensor->data,
                                                parameter.weight.bytes(), parameter.spec.name));
    }
    file->Release(*tensor);  // or the weights would be in memory twice
  }
  return absl::OkStatus();
}

}  // namespace headrace
