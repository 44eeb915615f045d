#include "common/log.h"

#include <unistd.h>

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace headrace {
namespace {

class Log {
 public:
  void SetSource(std::string_view source) {
    absl::MutexLock lock(&mu_);
    source_ = source;
  }

  void Write(char severity, std::string_view message) {
    const std::string time =
        absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone());
    // A peer's words may be in the message: they must not forge a line of their own.
    const std::string text =
        absl::StrReplaceAll(std::string(message), {{"\n", "\\n"}, {"\r", "\\r"}});
    absl::MutexLock lock(&mu_);
    const std::string line =
        absl::StrCat(time, " ", std::string(1, severity), " ", source_, ": ", text, "\n");
    // One write, so that processes sharing a stderr do not mix their lines. Nothing can be done
    // about a stderr that is gone.
    if (write(STDERR_FILENO, line.data(), line.size()) < 0) return;
  }

 private:
  absl::Mutex mu_;
  std::string source_ ABSL_GUARDED_BY(mu_) = "headrace";
};

Log& TheLog() {
  static Log* const log = new Log;
  return *log;
}

}  // namespace

void SetLogSource(std::string_view source) { TheLog().SetSource(source); }
void LogInfo(std::string_view message) { TheLog().Write('I', message); }
void LogWarning(std::string_view message) { TheLog().Write('W', message); }
void LogError(std::string_view message) { TheLog().Write('E', message); }

}  // namespace headrace
