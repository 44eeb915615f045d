// Tokens as the blob store holds them (docs/format-tokens.md): a 32-byte header, then tokens of 1, 2 or
// 4 bytes, little endian.
//
//   0  8  magic "HRTOKENS"
//   8  4  version, 1
//  12  4  bytes a token: 1, 2 or 4
//  16  8  number of tokens
//  24  4  largest token
//  28  4  zero
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/file.h"

namespace headrace {

inline constexpr int64_t kTokenHeaderBytes = 32;

// The header for these tokens; what follows it in the file is the tokens themselves.
std::string TokenHeader(int64_t token_bytes, int64_t num_tokens, int64_t max_token);

// Tokens in a mapped file. Immutable; any thread.
class TokenFile {
 public:
  // INVALID_ARGUMENT: not a token file, truncated, or of an unknown version (says which).
  static absl::StatusOr<std::unique_ptr<TokenFile>> Open(const std::string& path);

  int64_t size() const { return num_tokens_; }
  int64_t max_token() const { return max_token_; }
  int64_t token_bytes() const { return token_bytes_; }
  int32_t operator[](int64_t i) const;  // 0 ≤ i < size()

 private:
  TokenFile() = default;
  std::unique_ptr<MappedFile> file_;
  const char* tokens_ = nullptr;
  int64_t num_tokens_ = 0, max_token_ = 0, token_bytes_ = 0;
};

}  // namespace headrace
