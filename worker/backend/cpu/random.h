// Many blocks of a random stream at once: the same numbers as RandomStream::Block, several a cycle.
#pragma once

#include <cstdint>

#include "common/philox.h"

namespace headrace {

// Blocks [first, first + num) to out[4 * num]. A stream has 2^32 blocks; what lies beyond comes
// from the stream whose key differs in its second word by the block's upper 32 bits.
void RandomBlocks(const RandomStream& stream, uint64_t first, int64_t num, uint32_t* out);

// A number in [0, 2^24]; an element is dropped when its upper 24 bits are below it: probability p
// rounded to 24 bits.
inline uint32_t DropThreshold(float p) { return static_cast<uint32_t>(p * 16777216.0f); }

}  // namespace headrace
