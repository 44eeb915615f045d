// CRC-32C by what x86 processors have for it. Internal to crc32c.cc, which knows what this one has.
// All take and return the register, without the inversions at both ends. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace {

// SSE4.2's instruction, on three interleaved streams: 8 bytes a cycle.
uint32_t ExtendByInstruction(uint32_t crc, const unsigned char* p, size_t size);
uint32_t CopyByInstruction(uint32_t crc, unsigned char* to, const unsigned char* p, size_t size,
                           bool past_cache);

// Carry-less products of 64 bytes (AVX512F, VPCLMULQDQ): as fast as the memory, and no slower for
// short pieces.
uint32_t ExtendByProducts(uint32_t crc, const unsigned char* p, size_t size);
uint32_t CopyByProducts(uint32_t crc, unsigned char* to, const unsigned char* p, size_t size,
                        bool past_cache);

}  // namespace headrace
