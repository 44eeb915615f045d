// The clock that spans of a trace are taken with: it never jumps, and means nothing on another
// machine until somebody has measured how far apart the two are.
#pragma once

#include <cstdint>
#include <string>

namespace headrace {

// CLOCK_MONOTONIC; some 20 ns a call.
int64_t SteadyNanos();

// Names the clock: processes that see the same name read the same clock. The kernel's boot id and
// time namespace; where the system does not tell, a name of this process alone.
const std::string& SteadyClockName();

}  // namespace headrace
