#include "common/steady_clock.h"

#include <limits.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <random>

#include "absl/strings/str_cat.h"

namespace headrace {
namespace {

std::string ReadName() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char space[PATH_MAX] = "";  // "time:[4026531834]"
  const ssize_t size = readlink("/proc/self/ns/time", space, sizeof(space) - 1);
  if (!boot.empty() && size > 0) return absl::StrCat(boot, " ", space);
  std::random_device random;
  return absl::StrCat("process ", getpid(), " ", random(), random());
}

}  // namespace

int64_t SteadyNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

const std::string& SteadyClockName() {
  static const std::string* const name = new std::string(ReadName());
  return *name;
}

}  // namespace headrace
