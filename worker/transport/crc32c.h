// CRC-32C (Castagnoli), the checksum of every frame's payload: RFC 3720's polynomial, as iSCSI,
// ext4 and Snappy use it. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace headrace {

// The checksum of A followed by `size` bytes at `data`, given the checksum of A (0 when A is
// empty). By the first of Crc32cWays.
uint32_t ExtendCrc32c(uint32_t crc, const void* data, size_t size);

// The same of `size` bytes at `from`, which it copies to `to` (no overlap) in the same pass over
// memory. With `past_cache` the copy goes straight to memory where the processor can do that, which
// is faster for what is too large to be still in cache when it is read: 2 × at 4 MiB and 64 MiB.
uint32_t CopyAndExtendCrc32c(uint32_t crc, void* to, const void* from, size_t size,
                             bool past_cache);

inline uint32_t Crc32c(std::string_view bytes) {
  return ExtendCrc32c(0, bytes.data(), bytes.size());
}

// One way to compute both.
struct Crc32cWay {
  const char* name;
  // On the register, without the inversions at both ends.
  uint32_t (*raw)(uint32_t crc, const unsigned char* data, size_t size);
  uint32_t (*raw_copy)(uint32_t crc, unsigned char* to, const unsigned char* from, size_t size,
                       bool past_cache);

  // As the functions above.
  uint32_t Extend(uint32_t crc, const void* data, size_t size) const;
  uint32_t CopyAndExtend(uint32_t crc, void* to, const void* from, size_t size,
                         bool past_cache) const;
};

// Those that this processor can go, the fastest first. "tables", the last, goes everywhere, and is
// the tests' second opinion.
const std::vector<Crc32cWay>& Crc32cWays();

}  // namespace headrace
