#include "worker/transport/crc32c.h"

#include <algorithm>
#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

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

uint64_t LoadWord(const unsigned char* p) {
  uint64_t word;
  std::memcpy(&word, p, sizeof(word));
  return word;
}

// The register without the inversions at both ends.
uint32_t RawPortable(uint32_t crc, const unsigned char* p, size_t size) {
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

#if defined(__x86_64__)

// The instruction takes three cycles but one can start each cycle: three streams side by side, then
// joined by moving a register over the zero bytes that the streams after it stand for.
constexpr size_t kStreamBytes = 4096;

// Moves a register over kStreamBytes zero bytes; linear, so four byte tables do.
class ZeroShift {
 public:
  ZeroShift() {
    const std::array<unsigned char, kStreamBytes> zeros{};
    std::array<uint32_t, 32> image;
    for (int bit = 0; bit < 32; ++bit)
      image[bit] = RawPortable(1u << bit, zeros.data(), zeros.size());
    for (int byte = 0; byte < 4; ++byte) {
      for (uint32_t b = 0; b < 256; ++b) {
        uint32_t sum = 0;
        for (int bit = 0; bit < 8; ++bit) sum ^= ((b >> bit) & 1) ? image[8 * byte + bit] : 0;
        tables_[byte][b] = sum;
      }
    }
  }
  uint32_t operator()(uint32_t crc) const {
    return tables_[0][crc & 0xff] ^ tables_[1][(crc >> 8) & 0xff] ^ tables_[2][(crc >> 16) & 0xff] ^
           tables_[3][crc >> 24];
  }

 private:
  std::array<ByteTable, 4> tables_;
};

__attribute__((target("sse4.2"))) uint32_t RawSse42(uint32_t crc, const unsigned char* p,
                                                    size_t size) {
  static const ZeroShift shift;
  for (; size >= 3 * kStreamBytes; p += 3 * kStreamBytes, size -= 3 * kStreamBytes) {
    uint64_t a = crc, b = 0, c = 0;
    for (size_t i = 0; i < kStreamBytes; i += 8) {
      a = _mm_crc32_u64(a, LoadWord(p + i));
      b = _mm_crc32_u64(b, LoadWord(p + kStreamBytes + i));
      c = _mm_crc32_u64(c, LoadWord(p + 2 * kStreamBytes + i));
    }
    const uint32_t ab = shift(static_cast<uint32_t>(a)) ^ static_cast<uint32_t>(b);
    crc = shift(ab) ^ static_cast<uint32_t>(c);
  }
  uint64_t wide = crc;
  for (; size >= 8; p += 8, size -= 8) wide = _mm_crc32_u64(wide, LoadWord(p));
  crc = static_cast<uint32_t>(wide);
  for (; size > 0; ++p, --size) crc = _mm_crc32_u8(crc, *p);
  return crc;
}

constexpr size_t kCacheLine = 64;

template <bool kPastCache>
__attribute__((target("sse4.2"))) inline void StoreWord(unsigned char* to, uint64_t word) {
  if constexpr (kPastCache) {
    _mm_stream_si64(reinterpret_cast<long long*>(to), static_cast<long long>(word));
  } else {
    std::memcpy(to, &word, sizeof(word));
  }
}

template <bool kPastCache>
__attribute__((target("sse4.2"))) uint32_t RawCopySse42(uint32_t crc, unsigned char* to,
                                                        const unsigned char* p, size_t size) {
  static const ZeroShift shift;
  if (kPastCache) {  // such stores are fast for whole lines only
    const size_t head =
        std::min(size, (kCacheLine - reinterpret_cast<uintptr_t>(to) % kCacheLine) % kCacheLine);
    crc = RawSse42(crc, p, head);
    std::memcpy(to, p, head);
    to += head, p += head, size -= head;
  }
  for (; size >= 3 * kStreamBytes;
       p += 3 * kStreamBytes, to += 3 * kStreamBytes, size -= 3 * kStreamBytes) {
    uint64_t a = crc, b = 0, c = 0;
    for (size_t i = 0; i < kStreamBytes; i += 8) {
      const uint64_t words[] = {LoadWord(p + i), LoadWord(p + kStreamBytes + i),
                                LoadWord(p + 2 * kStreamBytes + i)};
      a = _mm_crc32_u64(a, words[0]);
      b = _mm_crc32_u64(b, words[1]);
      c = _mm_crc32_u64(c, words[2]);
      StoreWord<kPastCache>(to + i, words[0]);
      StoreWord<kPastCache>(to + kStreamBytes + i, words[1]);
      StoreWord<kPastCache>(to + 2 * kStreamBytes + i, words[2]);
    }
    const uint32_t ab = shift(static_cast<uint32_t>(a)) ^ static_cast<uint32_t>(b);
    crc = shift(ab) ^ static_cast<uint32_t>(c);
  }
  if (kPastCache) _mm_sfence();
  std::memcpy(to, p, size);
  return RawSse42(crc, p, size);
}

#endif

}  // namespace

uint32_t CopyAndExtendCrc32c(uint32_t crc, void* to, const void* from, size_t size,
                             bool past_cache) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) {
    const auto copy = past_cache ? RawCopySse42<true> : RawCopySse42<false>;
    return ~copy(~crc, static_cast<unsigned char*>(to), static_cast<const unsigned char*>(from),
                 size);
  }
#endif
  std::memcpy(to, from, size);
  return ExtendCrc32cPortable(crc, from, size);
}

uint32_t ExtendCrc32c(uint32_t crc, const void* data, size_t size) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) return ~RawSse42(~crc, static_cast<const unsigned char*>(data), size);
#endif
  return ExtendCrc32cPortable(crc, data, size);
}

uint32_t ExtendCrc32cPortable(uint32_t crc, const void* data, size_t size) {
  return ~RawPortable(~crc, static_cast<const unsigned char*>(data), size);
}

}  // namespace headrace
