#include "common/token_file.h"

#include <string.h>

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace headrace {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tokens are read in place");

constexpr std::string_view kMagic = "HRTOKENS";
constexpr uint32_t kVersion = 1;

template <typename T>
T Read(const char* from) {
  T value;
  memcpy(&value, from, sizeof(T));
  return value;
}

template <typename T>
void Append(std::string* to, T value) {
  to->append(reinterpret_cast<const char*>(&value), sizeof(T));
}

template <typename T>
int64_t LargestOf(const char* tokens, int64_t n) {
  T largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    largest = std::max(largest, Read<T>(tokens + i * static_cast<int64_t>(sizeof(T))));
  }
  return largest;
}

int64_t LargestOf(const char* tokens, int64_t n, int64_t token_bytes) {
  if (token_bytes == 1) return LargestOf<uint8_t>(tokens, n);
  if (token_bytes == 2) return LargestOf<uint16_t>(tokens, n);
  return LargestOf<uint32_t>(tokens, n);
}

absl::Status Bad(const std::string& path, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", std::string(why)));
}

}  // namespace

std::string TokenHeader(int64_t token_bytes, int64_t num_tokens, int64_t max_token) {
  std::string header(kMagic);
  Append(&header, kVersion);
  Append(&header, static_cast<uint32_t>(token_bytes));
  Append(&header, static_cast<uint64_t>(num_tokens));
  Append(&header, static_cast<uint32_t>(max_token));
  Append(&header, uint32_t{0});
  return header;
}

absl::StatusOr<std::unique_ptr<TokenFile>> TokenFile::Open(const std::string& path) {
  HEADRACE_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  const std::string_view data = file->data();
  if (data.substr(0, kMagic.size()) != kMagic) return Bad(path, "not a token file");
  if (data.size() < kTokenHeaderBytes) return Bad(path, "token file truncated in its header");
  const uint32_t version = Read<uint32_t>(data.data() + 8);
  if (version != kVersion) {
    return Bad(path, absl::StrCat("token file of version ", version, ", expected ", kVersion));
  }
  const uint32_t token_bytes = Read<uint32_t>(data.data() + 12);
  if (token_bytes != 1 && token_bytes != 2 && token_bytes != 4) {
    return Bad(path, absl::StrCat(token_bytes, " bytes a token, expected 1, 2 or 4"));
  }
  const uint64_t num_tokens = Read<uint64_t>(data.data() + 16);
  const uint64_t have = data.size() - kTokenHeaderBytes;
  if (have / token_bytes != num_tokens || have % token_bytes != 0) {
    return Bad(path, absl::StrCat("token file truncated: ", num_tokens, " tokens of ", token_bytes,
                                  " bytes promised, ", have, " bytes follow the header"));
  }
  auto tokens = std::unique_ptr<TokenFile>(new TokenFile);
  tokens->tokens_ = data.data() + kTokenHeaderBytes;
  tokens->num_tokens_ = static_cast<int64_t>(num_tokens);
  tokens->max_token_ = Read<uint32_t>(data.data() + 24);
  tokens->token_bytes_ = token_bytes;
  tokens->file_ = std::move(file);
  // Whoever trusts max_token indexes tables by tokens, so it is checked once, here.
  const int64_t largest = LargestOf(tokens->tokens_, tokens->num_tokens_, token_bytes);
  if (largest != tokens->max_token_ || largest > std::numeric_limits<int32_t>::max()) {
    return Bad(
        path, absl::StrCat("largest token is ", largest, ", the header says ", tokens->max_token_));
  }
  return tokens;
}

int32_t TokenFile::operator[](int64_t i) const {
  const char* at = tokens_ + i * token_bytes_;
  if (token_bytes_ == 1) return Read<uint8_t>(at);
  if (token_bytes_ == 2) return Read<uint16_t>(at);
  return static_cast<int32_t>(Read<uint32_t>(at));
}

}  // namespace headrace
