// Times and shares as people say them. Sizes are FormatBytes and FormatCount (common/flags.h).
#pragma once

#include <string>

namespace headrace {

// "850 µs", "12.3 ms", "4.2 s", "3m 07s", "2h 05m", "3d 04h"; "?" for what is no time.
std::string FormatSeconds(double seconds);
// "12.5 %".
std::string FormatShare(double share);
// Local time, "2026-12-01 05:10:18"; "" for 0.
std::string FormatUnixTime(double unix_seconds);
// "1.8342": enough to see a loss move.
std::string FormatLoss(double loss);

}  // namespace headrace
