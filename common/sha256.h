// SHA-256 (OpenSSL), lower-case hex.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace headrace {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  void Update(std::string_view bytes);
  std::string Finish();  // once

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

std::string Sha256Hex(std::string_view bytes);
bool IsSha256(std::string_view text);  // 64 lower-case hex digits

}  // namespace headrace
