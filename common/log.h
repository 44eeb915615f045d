// One line a message on stderr: "2026-12-01T04:53:56.123Z I worker w0: …". Thread-safe.
#pragma once

#include <string_view>

namespace headrace {

// Who speaks ("coordinator", "worker w0"). Call once, first.
void SetLogSource(std::string_view source);
void LogInfo(std::string_view message);
void LogWarning(std::string_view message);
void LogError(std::string_view message);

}  // namespace headrace
