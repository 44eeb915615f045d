#include "common/sha256.h"

#include <openssl/evp.h>

#include <array>

#include "absl/strings/escaping.h"

namespace headrace {

struct Sha256::Context {
  EVP_MD_CTX* md = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(md); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  EVP_DigestInit_ex(context_->md, EVP_sha256(), nullptr);
}

Sha256::~Sha256() = default;

void Sha256::Update(std::string_view bytes) {
  EVP_DigestUpdate(context_->md, bytes.data(), bytes.size());
}

std::string Sha256::Finish() {
  std::array<char, 32> digest{};
  EVP_DigestFinal_ex(context_->md, reinterpret_cast<unsigned char*>(digest.data()), nullptr);
  return absl::BytesToHexString(absl::string_view(digest.data(), digest.size()));
}

std::string Sha256Hex(std::string_view bytes) {
  Sha256 hash;
  hash.Update(bytes);
  return hash.Finish();
}

bool IsSha256(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace headrace
