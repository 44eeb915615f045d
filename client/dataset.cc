#include "client/dataset.h"

#include <string.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string_view>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "client/job_keys.h"
#include "common/file.h"
#include "common/sha256.h"
#include "common/status.h"
#include "common/token_file.h"
#include "plan/job_check.h"
#include "plan/model.h"

namespace headrace {
namespace {

constexpr size_t kHeaderWords = 256;
constexpr size_t kHeaderBytes = 4 * kHeaderWords;

// llm.c's token files.
struct KnownHeader {
  int32_t magic;
  int32_t version;
  v1::TokenType type;
};
constexpr KnownHeader kHeaders[] = {{20240520, 1, v1::TOKEN_TYPE_UINT16},
                                    {20240801, 7, v1::TOKEN_TYPE_UINT32}};

// Tokens in a mapped file, little endian.
struct Tokens {
  std::string_view bytes;
  int64_t width = 1;

  int64_t size() const { return static_cast<int64_t>(bytes.size()) / width; }
  uint32_t at(int64_t i) const {
    uint32_t value = 0;
    memcpy(&value, bytes.data() + i * width, static_cast<size_t>(width));
    return value;
  }
};

int32_t Word(std::string_view bytes, size_t index) {
  int32_t word;
  memcpy(&word, bytes.data() + 4 * index, 4);
  return word;
}

std::string TypeWord(v1::TokenType type) {
  return EnumWord(*v1::TokenType_descriptor()->FindValueByNumber(type));
}

absl::Status Error(const std::string& key, const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(key, ": ", path, what));
}

absl::StatusOr<std::unique_ptr<MappedFile>> OpenData(const std::string& key,
                                                     const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) return Error(key, path, ": no such file");
  if (!std::filesystem::is_regular_file(status)) {
    return Error(key, path, ": not a file; expected a file of text or tokens");
  }
  if (std::filesystem::file_size(path, error) == 0 && !error) {
    return Error(key, path, ": the file is empty; expected at least one sequence of tokens");
  }
  auto file = MappedFile::Open(path);
  if (!file.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(key, ": ", std::string(file.status().message())));
  }
  return file;
}

// Strips llm.c's header, if that is what the file begins with.
absl::StatusOr<Tokens> ParseBin(std::string_view bytes, const std::string& path,
                                v1::TokenType type) {
  const int64_t width = type == v1::TOKEN_TYPE_UINT32 ? 4 : 2;
  const auto* header = std::find_if(std::begin(kHeaders), std::end(kHeaders), [&](const auto& h) {
    return bytes.size() >= kHeaderBytes && Word(bytes, 0) == h.magic;
  });
  std::optional<int64_t> promised;
  if (header != std::end(kHeaders)) {
    if (Word(bytes, 1) != header->version) {
      return Error("data.tokens", path,
                   absl::StrCat(": llm.c header of version ", Word(bytes, 1), "; expected version ",
                                header->version));
    }
    if (header->type != type) {
      return Error("data.token_type", path,
                   absl::StrCat(" says ", TypeWord(header->type), " in its header; expected ",
                                TypeWord(type), " as token_type says"));
    }
    promised = Word(bytes, 2);
    bytes.remove_prefix(kHeaderBytes);
  }
  if (bytes.size() % static_cast<size_t>(width) != 0) {
    return Error("data.tokens", path,
                 absl::StrCat(": ", bytes.size(), " bytes of tokens; expected a multiple of ",
                              width, " (", TypeWord(type), ")"));
  }
  const Tokens tokens{bytes, width};
  if (promised.has_value() && *promised != tokens.size()) {
    return Error("data.tokens", path,
                 absl::StrCat(": its header promises ", *promised, " tokens; ", tokens.size(),
                              " follow it"));
  }
  return tokens;
}

absl::StatusOr<int64_t> LargestToken(const Tokens& tokens, const std::string& key,
                                     const std::string& path, int64_t vocabulary) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < tokens.size(); ++i) {
    const uint32_t token = tokens.at(i);
    if (token >= vocabulary) {
      return Error(key, path,
                   absl::StrCat(": token ", token, " at position ", i,
                                "; expected tokens below model.vocab_size ", vocabulary));
    }
    largest = std::max(largest, token);
  }
  return int64_t{largest};
}

// Leaves header and tokens at `path`, whole or not at all. A file of the right size under its own
// hash is taken as it is: the store checks the hash again.
absl::Status Keep(const std::string& path, std::string_view header, std::string_view tokens) {
  std::error_code error;
  if (std::filesystem::file_size(path, error) == header.size() + tokens.size() && !error) {
    return absl::OkStatus();
  }
  const std::string part = path + ".part";
  {
    std::ofstream file(part, std::ios::binary | std::ios::trunc);
    file.write(header.data(), static_cast<std::streamsize>(header.size()));
    file.write(tokens.data(), static_cast<std::streamsize>(tokens.size()));
    file.flush();
    if (!file)
      return absl::InternalError(absl::StrCat("cannot write ", part, ": is the disk full?"));
  }
  std::filesystem::rename(part, path, error);
  if (error) return absl::InternalError(absl::StrCat("cannot name ", path, ": ", error.message()));
  return absl::OkStatus();
}

absl::StatusOr<PreparedDataset> Prepare(const JobFile& job, const std::string& cache_dir) {
  const v1::DataSpec& data = job.spec.data();
  const bool is_text = !data.text().empty();
  const std::string key = is_text ? "data.text" : "data.tokens";
  const std::string path = job.Resolve(is_text ? data.text() : data.tokens());
  HEADRACE_ASSIGN_OR_RETURN(const Model model, ResolveModel(job.spec.model()));
  HEADRACE_ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file, OpenData(key, path));
  Tokens tokens{file->data(), 1};
  if (!is_text) {
    HEADRACE_ASSIGN_OR_RETURN(tokens, ParseBin(file->data(), path, data.token_type()));
  }
  HEADRACE_ASSIGN_OR_RETURN(const int64_t largest,
                            LargestToken(tokens, key, path, model.vocabulary));
  const std::string header = TokenHeader(tokens.width, tokens.size(), largest);
  Sha256 hash;
  hash.Update(header);
  hash.Update(tokens.bytes);
  PreparedDataset prepared;
  prepared.dataset.set_sha256(hash.Finish());
  prepared.dataset.set_num_tokens(tokens.size());
  prepared.dataset.set_max_token(largest);
  prepared.dataset.set_token_bytes(tokens.width);
  HEADRACE_RETURN_IF_ERROR(ValidateJob(job.spec, &prepared.dataset));
  prepared.path = absl::StrCat(cache_dir, "/", prepared.dataset.sha256(), ".tokens");
  HEADRACE_RETURN_IF_ERROR(MakeDirectories(cache_dir));
  HEADRACE_RETURN_IF_ERROR(Keep(prepared.path, header, tokens.bytes));
  return prepared;
}

}  // namespace

absl::StatusOr<PreparedDataset> PrepareDataset(const JobFile& job, const std::string& cache_dir) {
  absl::StatusOr<PreparedDataset> prepared = Prepare(job, cache_dir);
  if (absl::IsInvalidArgument(prepared.status())) return job.Locate(prepared.status());
  return prepared;
}

}  // namespace headrace
