// Hugging Face's safetensors: u64 header length, JSON header, tensor bytes. fp32 only. Tensors lie
// in the order they were added, without gaps, so the bytes after the header are all parameters in
// layer order.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/file.h"

namespace headrace {

struct NamedTensor {
  std::string name;
  std::vector<int64_t> shape;
  const float* data = nullptr;
};

// The 8 + n header bytes for these tensors (data not read).
std::string SafetensorsHeader(const std::vector<NamedTensor>& tensors,
                              const std::map<std::string, std::string>& metadata);

// A safetensors file in memory; tensors in file order.
class SafetensorsFile {
 public:
  // INVALID_ARGUMENT: header length beyond the file or over 100 MB, bad JSON, a tensor that is not
  // F32 or whose offsets do not fit its shape, overlap or leave the file (names it).
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);

  const std::vector<NamedTensor>& tensors() const { return tensors_; }
  std::string_view payload() const { return payload_; }  // all tensor bytes
  // What the header's __metadata__ says; whatever is no text there is left out.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // One of tensors() has been read: as MappedFile::Release.
  void Release(const NamedTensor& tensor) const;

 private:
  SafetensorsFile() = default;
  std::unique_ptr<MappedFile> file_;
  std::vector<NamedTensor> tensors_;
  std::string_view payload_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace headrace
