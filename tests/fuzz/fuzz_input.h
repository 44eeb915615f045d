// An input read as choices and pieces, so that small changes of it stay meaningful. Beyond its end
// everything is 0 and empty.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace headrace {

class FuzzInput {
 public:
  explicit FuzzInput(std::string_view bytes) : rest_(bytes) {}

  bool done() const { return rest_.empty(); }

  uint8_t Byte() {
    if (rest_.empty()) return 0;
    const uint8_t byte = static_cast<uint8_t>(rest_[0]);
    rest_.remove_prefix(1);
    return byte;
  }
  // 0 to `limit` − 1.
  int Choice(int limit) { return Byte() % limit; }

  // Its length in two bytes, the lower one first, then so many bytes, or what is left.
  std::string Piece() {
    const size_t low = Byte();
    const size_t length = low + 256 * size_t{Byte()};
    const std::string piece(rest_.substr(0, length));
    rest_.remove_prefix(piece.size());
    return piece;
  }

 private:
  std::string_view rest_;
};

}  // namespace headrace
