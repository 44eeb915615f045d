// CRC-32C (Castagnoli), the checksum of every frame's payload: RFC 3720's polynomial, as iSCSI,
// ext4 and Snappy use it. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace headrace {

// The checksum of A followed by `size` bytes at `data`, given the checksum of A (0 when A is
// empty). Uses SSE4.2's instruction on three interleaved streams where the processor has it.
uint32_t ExtendCrc32c(uint32_t crc, const void* data, size_t size);

// The same of `size` bytes at `from`, which it copies to `to` (no overlap) in the same pass over
// memory. With `past_cache` the copy goes straight to memory where the processor can do that, which
// is faster for what is too large to be still in cache when it is read: 2 × at 4 MiB and 64 MiB.
uint32_t CopyAndExtendCrc32c(uint32_t crc, void* to, const void* from, size_t size,
                             bool past_cache);

inline uint32_t Crc32c(std::string_view bytes) {
  return ExtendCrc32c(0, bytes.data(), bytes.size());
}

// The same by tables alone, for processors without the instruction, and as the tests' second
// opinion.
uint32_t ExtendCrc32cPortable(uint32_t crc, const void* data, size_t size);

}  // namespace headrace
