#include "worker/transport/crc32c.h"

#include <array>
#include <cstring>
#include <vector>

#include "worker/transport/crc32c_x86.h"

namespace headrace {
namespace {

constexpr uint32_t kReversedPolynomial = 0x82f63b78;

using ByteTable = std::array<uint32_t, 256>;

// tables[k][b]: what byte b becomes when k more zero bytes have gone through the register.
constexpr std::array<ByteTable, 8> MakeSlicingTables() {
  std::array<ByteTable, 8> tables{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? kReversedPolynomial : 0);
    tables[0][b] = crc;
  }
  for (int k = 1; k < 8; ++k) {
    for (uint32_t b = 0; b < 256; ++b) {
      const uint32_t before = tables[k - 1][b];
      tables[k][b] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}

constexpr std::array<ByteTable, 8> kTables = MakeSlicingTables();

uint32_t ExtendByTables(uint32_t crc, const unsigned char* p, size_t size) {
  for (; size >= 8; p += 8, size -= 8) {
    uint32_t next = 0;
    for (int k = 0; k < 8; ++k) {
      const uint32_t mixed = k < 4 ? (crc >> (8 * k)) & 0xff : 0;
      next ^= kTables[7 - k][mixed ^ p[k]];
    }
    crc = next;
  }
  for (; size > 0; ++p, --size) crc = (crc >> 8) ^ kTables[0][(crc ^ *p) & 0xff];
  return crc;
}

uint32_t CopyByTables(uint32_t crc, unsigned char* to, const unsigned char* from, size_t size,
                      bool) {
  std::memcpy(to, from, size);
  return ExtendByTables(crc, from, size);
}

std::vector<Crc32cWay> FindWays() {
  std::vector<Crc32cWay> ways;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq")) {
      ways.push_back({"products", ExtendByProducts, CopyByProducts});
    }
    ways.push_back({"instruction", ExtendByInstruction, CopyByInstruction});
  }
#endif
  ways.push_back({"tables", ExtendByTables, CopyByTables});
  return ways;
}

}  // namespace

const std::vector<Crc32cWay>& Crc32cWays() {
  static const std::vector<Crc32cWay> ways = FindWays();
  return ways;
}

uint32_t Crc32cWay::Extend(uint32_t crc, const void* data, size_t size) const {
  return ~raw(~crc, static_cast<const unsigned char*>(data), size);
}

uint32_t Crc32cWay::CopyAndExtend(uint32_t crc, void* to, const void* from, size_t size,
                                  bool past_cache) const {
  return ~raw_copy(~crc, static_cast<unsigned char*>(to), static_cast<const unsigned char*>(from),
                   size, past_cache);
}

uint32_t ExtendCrc32c(uint32_t crc, const void* data, size_t size) {
  return Crc32cWays().front().Extend(crc, data, size);
}

uint32_t CopyAndExtendCrc32c(uint32_t crc, void* to, const void* from, size_t size,
                             bool past_cache) {
  return Crc32cWays().front().CopyAndExtend(crc, to, from, size, past_cache);
}

}  // namespace headrace
