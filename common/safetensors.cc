#include "common/safetensors.h"

#include <string.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace headrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // as the reference implementation
constexpr int64_t kElementBytes = 4;

// Bytes of a shape, or −1 where a size is negative or the product leaves int64.
int64_t ShapeBytes(const std::vector<int64_t>& shape) {
  int64_t bytes = kElementBytes;
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes)) return -1;
  }
  return bytes;
}

struct Entry {
  NamedTensor tensor;
  uint64_t begin = 0, end = 0;
};

absl::Status BadTensor(const std::string& name, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("tensor \"", name, "\" ", std::string(why)));
}

// Reads an array of whole numbers that fit int64.
bool ReadNumbers(const Json& json, std::vector<int64_t>* numbers) {
  if (!json.is_array()) return false;
  for (const Json& item : json) {
    if (!item.is_number_integer()) return false;
    if (item.is_number_unsigned() && item.get<uint64_t>() > uint64_t{INT64_MAX}) return false;
    numbers->push_back(item.get<int64_t>());
  }
  return true;
}

absl::StatusOr<Entry> ReadEntry(const std::string& name, const Json& json) {
  if (!json.is_object()) return BadTensor(name, "is not described by an object");
  const auto dtype = json.find("dtype");
  if (dtype == json.end() || !dtype->is_string()) return BadTensor(name, "has no dtype");
  if (dtype->get<std::string>() != "F32") {
    return BadTensor(name, absl::StrCat("is ", dtype->get<std::string>(), ", expected F32"));
  }
  Entry entry;
  entry.tensor.name = name;
  const auto shape = json.find("shape");
  if (shape == json.end() || !ReadNumbers(*shape, &entry.tensor.shape)) {
    return BadTensor(name, "has no shape of whole numbers");
  }
  std::vector<int64_t> offsets;
  const auto range = json.find("data_offsets");
  if (range == json.end() || !ReadNumbers(*range, &offsets) || offsets.size() != 2 ||
      offsets[0] < 0 || offsets[1] < offsets[0]) {
    return BadTensor(name, "has no valid data_offsets");
  }
  if (ShapeBytes(entry.tensor.shape) != offsets[1] - offsets[0]) {
    return BadTensor(name, absl::StrCat("has ", offsets[1] - offsets[0], " bytes, its shape needs ",
                                        ShapeBytes(entry.tensor.shape)));
  }
  entry.begin = static_cast<uint64_t>(offsets[0]);
  entry.end = static_cast<uint64_t>(offsets[1]);
  return entry;
}

void ReadMetadata(const Json& json, std::map<std::string, std::string>* metadata) {
  if (!json.is_object()) return;
  for (const auto& item : json.items()) {
    if (item.value().is_string()) (*metadata)[item.key()] = item.value().get<std::string>();
  }
}

// The entries in file order; they fill `payload_bytes` without gap or overlap.
absl::StatusOr<std::vector<Entry>> ReadHeader(std::string_view text, uint64_t payload_bytes,
                                              std::map<std::string, std::string>* metadata) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::InvalidArgumentError("the header is not a JSON object");
  std::vector<Entry> entries;
  for (const auto& item : json.items()) {
    if (item.key() == "__metadata__") {
      ReadMetadata(item.value(), metadata);
      continue;
    }
    HEADRACE_ASSIGN_OR_RETURN(Entry entry, ReadEntry(item.key(), item.value()));
    entries.push_back(std::move(entry));
  }
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t at = 0;
  for (const Entry& entry : entries) {
    if (entry.begin < at) return BadTensor(entry.tensor.name, "overlaps the one before it");
    if (entry.begin > at) return BadTensor(entry.tensor.name, "leaves a gap before it");
    if (entry.end > payload_bytes) return BadTensor(entry.tensor.name, "leaves the file");
    at = entry.end;
  }
  if (at != payload_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(payload_bytes - at, " bytes at the end belong to no tensor"));
  }
  return entries;
}

}  // namespace

std::string SafetensorsHeader(const std::vector<NamedTensor>& tensors,
                              const std::map<std::string, std::string>& metadata) {
  Json json = Json::object();
  if (!metadata.empty()) json["__metadata__"] = metadata;
  int64_t at = 0;
  for (const NamedTensor& tensor : tensors) {
    const int64_t end = at + ShapeBytes(tensor.shape);
    json[tensor.name] =
        Json{{"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  std::string text = json.dump();
  // Spaces up to a multiple of 8 keep the floats aligned.
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  std::string header(reinterpret_cast<const char*>(&length), kLengthBytes);
  return header + text;
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  HEADRACE_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> mapped, MappedFile::Open(path));
  const std::string_view data = mapped->data();
  uint64_t length = 0;
  if (data.size() >= kLengthBytes) memcpy(&length, data.data(), kLengthBytes);
  if (data.size() < kLengthBytes || length > kMaxHeaderBytes ||
      length > data.size() - kLengthBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a safetensors file: a header of ",
                                                   length, " bytes in a file of ", data.size()));
  }
  auto file = std::unique_ptr<SafetensorsFile>(new SafetensorsFile);
  file->payload_ = data.substr(kLengthBytes + length);
  absl::StatusOr<std::vector<Entry>> entries =
      ReadHeader(data.substr(kLengthBytes, length), file->payload_.size(), &file->metadata_);
  if (!entries.ok()) return Annotate(entries.status(), path);
  if (length % kElementBytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": the header's length ", length, " is not a multiple of 4"));
  }
  for (Entry& entry : *entries) {
    entry.tensor.data = reinterpret_cast<const float*>(file->payload_.data() + entry.begin);
    file->tensors_.push_back(std::move(entry.tensor));
  }
  file->file_ = std::move(mapped);
  return file;
}

void SafetensorsFile::Release(const NamedTensor& tensor) const {
  const int64_t begin = reinterpret_cast<const char*>(tensor.data) - file_->data().data();
  file_->Release(begin, begin + ShapeBytes(tensor.shape));
}

}  // namespace headrace
