#include "worker/checkpoint/slice_store.h"

#include <errno.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <set>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/sha256.h"
#include "common/status.h"

namespace headrace {
namespace {

constexpr int kMaxFolders = 64;
constexpr size_t kMaxJobIdBytes = 64;
constexpr absl::Duration kKeptFor = absl::Hours(24);
constexpr char kSuffix[] = "safetensors", kTemporarySuffix[] = ".tmp";

bool IsPlain(const std::string& job_id) {
  return !job_id.empty() && job_id.size() <= kMaxJobIdBytes &&
         std::all_of(job_id.begin(), job_id.end(),
                     [](char c) { return absl::ascii_isalnum(c) || c == '-' || c == '_'; });
}

std::string NameOf(const v1::HeldSlice& slice, SliceOrigin origin) {
  return absl::StrCat(slice.job_id(), ".", slice.step(), ".",
                      origin == SliceOrigin::kOwn ? "own" : "kept", ".", slice.sha256(), ".",
                      kSuffix);
}

struct NamedSlice {
  v1::HeldSlice slice;
  SliceOrigin origin = SliceOrigin::kOwn;
};

std::optional<NamedSlice> ReadName(const std::string& name) {
  const std::vector<std::string> parts = absl::StrSplit(name, '.');
  int64_t step = 0;
  if (parts.size() != 5 || parts[4] != kSuffix || !IsPlain(parts[0]) ||
      !absl::SimpleAtoi(parts[1], &step) || (parts[2] != "own" && parts[2] != "kept") ||
      !IsSha256(parts[3])) {
    return std::nullopt;
  }
  NamedSlice named;
  named.slice.set_job_id(parts[0]);
  named.slice.set_step(step);
  named.slice.set_sha256(parts[3]);
  named.origin = parts[2] == "own" ? SliceOrigin::kOwn : SliceOrigin::kNeighbour;
  return named;
}

}  // namespace

SliceStore::SliceStore(std::string folder, std::unique_ptr<FileLock> lock)
    : folder_(std::move(folder)), lock_(std::move(lock)) {}

absl::StatusOr<std::unique_ptr<SliceStore>> SliceStore::Open(const std::string& folder) {
  for (int i = 0; i < kMaxFolders; ++i) {
    const std::string path = absl::StrCat(folder, "/", i);
    HEADRACE_RETURN_IF_ERROR(MakeDirectories(path));
    absl::StatusOr<std::unique_ptr<FileLock>> lock = FileLock::Acquire(absl::StrCat(path, "/lock"));
    if (absl::IsFailedPrecondition(lock.status())) continue;
    HEADRACE_RETURN_IF_ERROR(lock.status());
    std::unique_ptr<SliceStore> store(new SliceStore(path, *std::move(lock)));
    HEADRACE_RETURN_IF_ERROR(store->Load());
    return store;
  }
  return absl::FailedPreconditionError(
      absl::StrCat(kMaxFolders, " processes keep slices in ", folder, " already"));
}

absl::Status SliceStore::Load() {
  std::vector<std::pair<absl::Time, std::string>> found;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder_, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    struct stat info;
    if (stat(it->path().c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    const absl::Time written = absl::TimeFromTimespec(info.st_mtim);
    const bool slice = ReadName(name).has_value();
    if (absl::EndsWith(name, kTemporarySuffix) || (slice && absl::Now() - written > kKeptFor)) {
      std::remove(it->path().c_str());
    } else if (slice) {
      found.emplace_back(written, name);
    }
  }
  if (error) return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot list ", folder_));
  std::sort(found.begin(), found.end());
  absl::MutexLock lock(&mu_);
  for (const auto& [written, name] : found) {
    const std::optional<NamedSlice> named = ReadName(name);
    Remember(name, {named->slice, named->origin});
  }
  return absl::OkStatus();
}

std::string SliceStore::PathOf(const std::string& name) const {
  return absl::StrCat(folder_, "/", name);
}

std::string SliceStore::Temporary(const std::string& job_id, int64_t step) {
  absl::MutexLock lock(&mu_);
  return PathOf(absl::StrCat(IsPlain(job_id) ? job_id : "job", ".", step, ".", ++last_temporary_,
                             kTemporarySuffix));
}

absl::Status SliceStore::Keep(const std::string& temporary, const v1::HeldSlice& slice,
                              SliceOrigin origin) {
  if (!IsPlain(slice.job_id()) || slice.step() < 0 || !IsSha256(slice.sha256())) {
    return absl::InvalidArgumentError(absl::StrCat("no slice is of job '", slice.job_id(),
                                                   "', step ", slice.step(), ", with the hash '",
                                                   slice.sha256(), "'"));
  }
  const std::string name = NameOf(slice, origin);
  absl::MutexLock lock(&mu_);
  if (rename(temporary.c_str(), PathOf(name).c_str()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot rename to ", PathOf(name)));
  }
  const Entry entry{slice, origin};
  Remember(name, entry);
  DropBack(entry);
  return absl::OkStatus();
}

void SliceStore::Remember(const std::string& name, Entry entry) {
  struct stat info {};
  if (stat(PathOf(name).c_str(), &info) == 0) entry.bytes = int64_t{info.st_size};
  entry.order = ++last_order_;
  entries_[name] = std::move(entry);
}

void SliceStore::DropBack(const Entry& newest) {
  const auto same_kind = [&](const Entry& entry) {
    return entry.slice.job_id() == newest.slice.job_id() && entry.origin == newest.origin;
  };
  std::map<int64_t, uint64_t> last_kept;  // by step
  for (const auto& [name, entry] : entries_) {
    if (!same_kind(entry)) continue;
    uint64_t& order = last_kept[entry.slice.step()];
    order = std::max(order, entry.order);
  }
  if (last_kept.size() <= kKeptSteps) return;
  std::vector<uint64_t> orders;
  for (const auto& [step, order] : last_kept) orders.push_back(order);
  std::sort(orders.rbegin(), orders.rend());
  const uint64_t oldest = orders[kKeptSteps - 1];
  Remove([&](const Entry& entry) {
    return same_kind(entry) && last_kept[entry.slice.step()] < oldest;
  });
}

template <typename Unwanted>
void SliceStore::Remove(const Unwanted& unwanted) {
  for (auto it = entries_.begin(); it != entries_.end();) {
    if (!unwanted(it->second)) {
      ++it;
      continue;
    }
    std::remove(PathOf(it->first).c_str());
    it = entries_.erase(it);
  }
}

absl::StatusOr<std::string> SliceStore::Find(const std::string& sha256) {
  absl::MutexLock lock(&mu_);
  for (auto it = entries_.begin(); it != entries_.end();) {
    if (it->second.slice.sha256() != sha256) {
      ++it;
      continue;
    }
    const std::string path = PathOf(it->first);
    if (access(path.c_str(), R_OK) == 0) return path;
    it = entries_.erase(it);  // somebody deleted it
  }
  return absl::NotFoundError(absl::StrCat("no slice ", sha256, " is here"));
}

std::vector<v1::HeldSlice> SliceStore::Held() const {
  std::vector<std::pair<uint64_t, const v1::HeldSlice*>> ordered;
  absl::MutexLock lock(&mu_);
  for (const auto& [name, entry] : entries_) ordered.emplace_back(entry.order, &entry.slice);
  std::sort(ordered.rbegin(), ordered.rend());
  std::vector<v1::HeldSlice> held;
  std::set<std::string> seen;  // one may be kept twice, as an own one and a neighbour's
  for (const auto& [order, slice] : ordered) {
    if (seen.insert(absl::StrCat(slice->job_id(), ".", slice->step(), ".", slice->sha256()))
            .second) {
      held.push_back(*slice);
    }
  }
  return held;
}

int64_t SliceStore::HeldBytes() const {
  absl::MutexLock lock(&mu_);
  int64_t bytes = 0;
  for (const auto& [name, entry] : entries_) bytes += entry.bytes;
  return bytes;
}

void SliceStore::Drop(const std::string& job_id, int64_t before_step) {
  absl::MutexLock lock(&mu_);
  Remove([&](const Entry& entry) {
    return entry.slice.job_id() == job_id && entry.slice.step() < before_step;
  });
}

void SliceStore::Discard(const std::string& sha256) {
  absl::MutexLock lock(&mu_);
  Remove([&](const Entry& entry) { return entry.slice.sha256() == sha256; });
}

bool SliceStore::HasRoom(int64_t bytes) const {
  struct statvfs info {};
  if (statvfs(folder_.c_str(), &info) != 0) return false;
  // In blocks, so that nothing overflows.
  const uint64_t needed = static_cast<uint64_t>(std::max<int64_t>(bytes, 0)) + kReservedBytes;
  return needed / std::max<uint64_t>(info.f_frsize, 1) < info.f_bavail;
}

}  // namespace headrace
