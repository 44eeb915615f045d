// Many blocks of a random stream at once: the same numbers as RandomStream::Block, several side by
// side.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/philox.h"

namespace headrace {

// Blocks [first, first + num) to out[4 * num]. A stream has 2^32 blocks; what lies beyond comes
// from the stream whose key differs in its second word by the block's upper 32 bits.
void RandomBlocks(const RandomStream& stream, uint64_t first, int64_t num, uint32_t* out);

// An element is dropped when the upper 24 bits of its number are below this, that is, when
// UniformFloat(number) < p.
inline uint32_t DropThreshold(float p) { return static_cast<uint32_t>(std::ceil(p * 0x1p24f)); }

}  // namespace headrace
