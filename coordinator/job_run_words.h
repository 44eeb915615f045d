// Sentences of a job that its store keeps and a restarted coordinator understands.
#pragma once

namespace headrace {

// The message of a RUNNING job that is to be PAUSED.
inline constexpr char kPausing[] =
    "is being paused: leaves its workers at a checkpoint after the step at hand";
inline constexpr char kPaused[] = "paused by request";

}  // namespace headrace
