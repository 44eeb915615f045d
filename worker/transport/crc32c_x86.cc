#include "worker/transport/crc32c_x86.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace headrace {
namespace {

#define HEADRACE_INSTRUCTION __attribute__((target("sse4.2")))
#define HEADRACE_PRODUCTS __attribute__((target("avx512f,vpclmulqdq,sse4.2")))

constexpr uint32_t kReversedPolynomial = 0x82f63b78;
constexpr size_t kCacheLine = 64;

enum class Copy { kNone, kCached, kPastCache };

uint64_t LoadWord(const unsigned char* p) {
  uint64_t word;
  std::memcpy(&word, p, sizeof(word));
  return word;
}

// Stores past the cache are fast for whole lines only.
size_t BytesToLine(const unsigned char* to) {
  return (kCacheLine - reinterpret_cast<uintptr_t>(to) % kCacheLine) % kCacheLine;
}

// The instruction takes three cycles but one can start each cycle: three streams side by side, then
// joined by moving a register over the zero bytes that the streams after it stand for.
constexpr size_t kStreamBytes = 4096;

// Moves a register over kStreamBytes zero bytes; linear, so four byte tables do.
class ZeroShift {
 public:
  HEADRACE_INSTRUCTION ZeroShift() {
    std::array<uint32_t, 32> image;
    for (int bit = 0; bit < 32; ++bit) {
      uint64_t crc = 1u << bit;
      for (size_t i = 0; i < kStreamBytes; i += 8) crc = _mm_crc32_u64(crc, 0);
      image[bit] = static_cast<uint32_t>(crc);
    }
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
  std::array<std::array<uint32_t, 256>, 4> tables_;
};

HEADRACE_INSTRUCTION uint32_t Serial(uint32_t crc, const unsigned char* p, size_t size) {
  uint64_t wide = crc;
  for (; size >= 8; p += 8, size -= 8) wide = _mm_crc32_u64(wide, LoadWord(p));
  crc = static_cast<uint32_t>(wide);
  for (; size > 0; ++p, --size) crc = _mm_crc32_u8(crc, *p);
  return crc;
}

template <Copy kCopy>
HEADRACE_INSTRUCTION inline uint64_t TakeWord(unsigned char* to, const unsigned char* p) {
  const uint64_t word = LoadWord(p);
  if constexpr (kCopy == Copy::kCached) std::memcpy(to, &word, sizeof(word));
  if constexpr (kCopy == Copy::kPastCache) {
    _mm_stream_si64(reinterpret_cast<long long*>(to), static_cast<long long>(word));
  }
  return word;
}

// `size` is a multiple of three streams.
template <Copy kCopy>
HEADRACE_INSTRUCTION uint32_t Streams(uint32_t crc, unsigned char* to, const unsigned char* p,
                                      size_t size) {
  static const ZeroShift shift;
  constexpr size_t k2 = 2 * kStreamBytes;
  for (size_t at = 0; at < size; at += 3 * kStreamBytes) {
    uint64_t a = crc, b = 0, c = 0;
    for (size_t i = at; i < at + kStreamBytes; i += 8) {
      a = _mm_crc32_u64(a, TakeWord<kCopy>(to + i, p + i));
      b = _mm_crc32_u64(b, TakeWord<kCopy>(to + kStreamBytes + i, p + kStreamBytes + i));
      c = _mm_crc32_u64(c, TakeWord<kCopy>(to + k2 + i, p + k2 + i));
    }
    const uint32_t ab = shift(static_cast<uint32_t>(a)) ^ static_cast<uint32_t>(b);
    crc = shift(ab) ^ static_cast<uint32_t>(c);
  }
  if (kCopy == Copy::kPastCache) _mm_sfence();
  return crc;
}

// x^n modulo the polynomial, bit-reversed as all of these are.
constexpr uint32_t PowerOfX(size_t n) {
  uint32_t power = 1u << 31;
  for (; n > 0; --n) power = (power >> 1) ^ ((power & 1) ? kReversedPolynomial : 0);
  return power;
}

// Four registers of a line each go through the bytes side by side: a register is multiplied by what
// moves it on by four lines, and the bytes there are added (Gopal et al., "Fast CRC Computation for
// Generic Polynomials Using PCLMULQDQ Instruction", Intel, 2009). A product of bit-reversed numbers
// is one bit short, hence << 1.
constexpr size_t kBlockBytes = 4 * kCacheLine;
constexpr long long kMoveEarly = static_cast<long long>(PowerOfX(8 * kBlockBytes + 32)) << 1;
constexpr long long kMoveLate = static_cast<long long>(PowerOfX(8 * kBlockBytes - 32)) << 1;

template <Copy kCopy>
HEADRACE_PRODUCTS inline __m512i TakeLine(unsigned char* to, const unsigned char* p) {
  const __m512i line = _mm512_loadu_si512(p);
  if constexpr (kCopy == Copy::kCached) _mm512_storeu_si512(to, line);
  if constexpr (kCopy == Copy::kPastCache) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), line);
  }
  return line;
}

// `size` is a multiple of kBlockBytes, and not 0.
template <Copy kCopy>
HEADRACE_PRODUCTS uint32_t Blocks(uint32_t crc, unsigned char* to, const unsigned char* p,
                                  size_t size) {
  const __m512i move = _mm512_set4_epi64(kMoveLate, kMoveEarly, kMoveLate, kMoveEarly);
  __m512i sums[4];
  for (size_t i = 0; i < 4; ++i) sums[i] = TakeLine<kCopy>(to + i * kCacheLine, p + i * kCacheLine);
  sums[0] = _mm512_xor_si512(sums[0], _mm512_set_epi64(0, 0, 0, 0, 0, 0, 0, crc));
  for (size_t at = kBlockBytes; at < size; at += kBlockBytes) {
    for (size_t i = 0; i < 4; ++i) {
      const size_t line = at + i * kCacheLine;
      const __m512i early = _mm512_clmulepi64_epi128(sums[i], move, 0x00);
      const __m512i late = _mm512_clmulepi64_epi128(sums[i], move, 0x11);
      constexpr int kXor = 0x96;
      sums[i] = _mm512_ternarylogic_epi64(early, late, TakeLine<kCopy>(to + line, p + line), kXor);
    }
  }
  if (kCopy == Copy::kPastCache) _mm_sfence();
  alignas(kCacheLine) unsigned char left[kBlockBytes];
  for (size_t i = 0; i < 4; ++i) _mm512_store_si512(left + i * kCacheLine, sums[i]);
  return Serial(0, left, kBlockBytes);
}

// What does not fill `kWhole` bytes goes word by word.
template <Copy kCopy, size_t kWhole, typename Middle>
uint32_t InParts(uint32_t crc, unsigned char* to, const unsigned char* p, size_t size,
                 Middle middle) {
  const auto serial = [&](size_t length) {
    if (kCopy != Copy::kNone) std::memcpy(to, p, length), to += length;
    crc = Serial(crc, p, length);
    p += length, size -= length;
  };
  if (kCopy == Copy::kPastCache) serial(std::min(size, BytesToLine(to)));
  if (const size_t whole = size - size % kWhole; whole > 0) {
    crc = middle(crc, to, p, whole);
    if (kCopy != Copy::kNone) to += whole;
    p += whole, size -= whole;
  }
  if (size > 0) serial(size);
  return crc;
}

template <Copy kCopy>
uint32_t ByInstruction(uint32_t crc, unsigned char* to, const unsigned char* p, size_t size) {
  return InParts<kCopy, 3 * kStreamBytes>(crc, to, p, size, Streams<kCopy>);
}

template <Copy kCopy>
uint32_t ByProducts(uint32_t crc, unsigned char* to, const unsigned char* p, size_t size) {
  return InParts<kCopy, kBlockBytes>(crc, to, p, size, Blocks<kCopy>);
}

}  // namespace

uint32_t ExtendByInstruction(uint32_t crc, const unsigned char* p, size_t size) {
  return ByInstruction<Copy::kNone>(crc, nullptr, p, size);
}

uint32_t CopyByInstruction(uint32_t crc, unsigned char* to, const unsigned char* p, size_t size,
                           bool past_cache) {
  return past_cache ? ByInstruction<Copy::kPastCache>(crc, to, p, size)
                    : ByInstruction<Copy::kCached>(crc, to, p, size);
}

uint32_t ExtendByProducts(uint32_t crc, const unsigned char* p, size_t size) {
  return ByProducts<Copy::kNone>(crc, nullptr, p, size);
}

uint32_t CopyByProducts(uint32_t crc, unsigned char* to, const unsigned char* p, size_t size,
                        bool past_cache) {
  return past_cache ? ByProducts<Copy::kPastCache>(crc, to, p, size)
                    : ByProducts<Copy::kCached>(crc, to, p, size);
}

}  // namespace headrace

#endif
