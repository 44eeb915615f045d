#include "tests/cuda_emulation/grid.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "tests/cuda_emulation/emulation.h"
#include "tests/cuda_emulation/fiber.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace headrace::emulation {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kWarp = 32;
constexpr size_t kMaxSharedBytes = 227 << 10;  // of a block, on compute capability 9.0
constexpr size_t kSharedBytesUnasked = 48 << 10;
constexpr size_t kArenaBytes = 1 << 20;

enum class State { kDone, kRunnable, kAtBarrier, kAtCollective };

struct Thread {
  Fiber fiber;
  bool started = false;
  uint3 index{};
  State state = State::kDone;
  Site site{};
  unsigned mask = 0;
  WarpOp op = nullptr;
};

struct Warp {
  unsigned exist = 0, arrived = 0, returned = 0;
  void* arguments[kWarp];
};

struct SharedPiece {
  const void* key;
  char* data;
  size_t bytes;
};

// Everything of the grid that runs. Plain globals: a fiber reaches them by whatever stack it is on.
std::array<Thread, kMaxThreads>& threads() {
  static auto* all = new std::array<Thread, kMaxThreads>;
  return *all;
}
std::array<Warp, kMaxThreads / kWarp> warps;
Grid grid;
int current = -1, num_threads = 0, num_done = 0, num_waiting = 0, phase = 0;
bool failed = false;
std::string report;
// Addresses that stand for what is ordered: each block's start and end, the barrier's two phases.
char start_edge, end_edge, barrier_edges[2];
char* shared_arena = nullptr;
size_t shared_used = 0;
void* dynamic_shared = nullptr;
std::vector<SharedPiece> shared_pieces;
std::map<const void*, size_t>& allowed_shared() {
  static auto* all = new std::map<const void*, size_t>;
  return *all;
}

// Not memset: ThreadSanitizer would see the scheduler write.
void FillWithNan(void* p, size_t bytes) {
  volatile char* at = static_cast<char*>(p);
  while (bytes-- > 0) *at++ = static_cast<char>(0xff);
}

// Pieces of one arena: an allocation inside a fiber would look like that thread's write.
char* TakeShared(size_t bytes) {
  char* piece = shared_arena + shared_used;
  shared_used += (bytes + 255) / 128 * 128;  // at least 128 guarded bytes behind each
  if (shared_used > kArenaBytes) std::abort();
  Unpoison(piece, bytes);
  return piece;
}

void ResetShared() {
  if (shared_arena == nullptr) {
    void* mapped =
        mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) std::abort();
    shared_arena = static_cast<char*>(mapped);
  }
  shared_used = 128;
  shared_pieces.clear();
  Poison(shared_arena, kArenaBytes);
}

std::string Where(int i) {
  const Thread& t = threads()[i];
  char text[512];
  if (t.state == State::kDone) {
    std::snprintf(text, sizeof(text), "thread (%u,%u,%u) has returned", t.index.x, t.index.y,
                  t.index.z);
  } else {
    std::snprintf(text, sizeof(text), "thread (%u,%u,%u) is at %s, %s:%d", t.index.x, t.index.y,
                  t.index.z, t.site.what != nullptr ? t.site.what : "?",
                  t.site.file != nullptr ? t.site.file : "?", t.site.line);
  }
  return text;
}

void FailAndYield(const std::string& what) {
  Fail(what);
  threads()[current].fiber.Yield();
}

// A thread's life: the kernel once for each block it is part of.
void ThreadMain() {
  Fiber::Entered();
  for (;;) {
    Acquire(&start_edge);
    grid.call(grid.context);
    Release(&end_edge);
    threads()[current].state = State::kDone;
    ++num_done;
    warps[current / kWarp].returned |= 1u << (current % kWarp);
    threads()[current].fiber.Yield();
  }
}

void ResumeThread(int i) {
  current = i;
  threadIdx = threads()[i].index;
  threads()[i].fiber.Resume();
}

void BeginBlock() {
  num_done = num_waiting = phase = 0;
  int i = 0;
  for (unsigned z = 0; z < blockDim.z; ++z) {
    for (unsigned y = 0; y < blockDim.y; ++y) {
      for (unsigned x = 0; x < blockDim.x; ++x, ++i) {
        threads()[i].index = {x, y, z};
        threads()[i].state = State::kRunnable;
        threads()[i].site = {};
      }
    }
  }
  for (int w = 0; w * kWarp < num_threads; ++w) {
    const int lanes = std::min(kWarp, num_threads - w * kWarp);
    warps[w] = {};
    warps[w].exist = lanes == kWarp ? ~0u : (1u << lanes) - 1;
  }
  Acquire(&end_edge);  // blocks share one shared memory: one is over before the next begins
  if (grid.shared_bytes > 0) FillWithNan(dynamic_shared, grid.shared_bytes);
  for (const SharedPiece& piece : shared_pieces) FillWithNan(piece.data, piece.bytes);
  Release(&start_edge);
}

// Nobody can run: names one thread that waits and two that are elsewhere.
std::string Deadlock() {
  int waiting = 0;
  while (threads()[waiting].state == State::kDone) ++waiting;
  const Thread& first = threads()[waiting];
  std::string text = "deadlock: " + Where(waiting);
  for (int t = 0, shown = 0; t < num_threads && shown < 2; ++t) {
    const Thread& other = threads()[t];
    if (other.state == first.state && other.site.line == first.site.line) continue;
    text += "; " + Where(t);
    ++shown;
  }
  return text;
}

void RunBlock(std::vector<int>& turns, std::mt19937_64& random) {
  BeginBlock();
  while (num_done < num_threads) {
    bool moved = false;
    if (options().order == Order::kRandom) std::shuffle(turns.begin(), turns.end(), random);
    for (int t : turns) {
      if (threads()[t].state != State::kRunnable) continue;
      ResumeThread(t);
      moved = true;
      if (failed) return;
    }
    if (!moved) return Fail(Deadlock());
  }
}

// What a device refuses to launch.
cudaError_t CheckLaunch(const Grid& g) {
  const uint64_t threads_wanted = uint64_t{g.threads.x} * g.threads.y * g.threads.z;
  if (threads_wanted < 1 || threads_wanted > kMaxThreads || g.threads.z > 64 || g.blocks.x < 1 ||
      g.blocks.y < 1 || g.blocks.z < 1 || g.blocks.x > 0x7fffffffu || g.blocks.y > 65535 ||
      g.blocks.z > 65535) {
    return cudaErrorInvalidConfiguration;
  }
  const auto allowed = allowed_shared().find(g.kernel);
  const size_t most = allowed == allowed_shared().end() ? kSharedBytesUnasked : allowed->second;
  return g.shared_bytes > most ? cudaErrorInvalidValue : cudaSuccess;
}

std::vector<int> InOrder(size_t count) {
  std::vector<int> order(count);
  for (size_t i = 0; i < count; ++i) order[i] = static_cast<int>(i);
  if (options().order == Order::kReverse) std::reverse(order.begin(), order.end());
  return order;
}

}  // namespace

Options& options() {
  static Options all;
  return all;
}
const std::string& last_report() { return report; }
cudaError_t& sticky_error() {
  static cudaError_t error = cudaSuccess;
  return error;
}

void Fail(const std::string& what) {
  if (failed) return;
  failed = true;
  sticky_error() = cudaErrorLaunchFailure;
  char block[64];
  std::snprintf(block, sizeof(block), "block (%u,%u,%u): ", blockIdx.x, blockIdx.y, blockIdx.z);
  report = block + what;
  std::fprintf(stderr, "CUDA emulation: %s\n", report.c_str());
}

std::string WhereLane(int lane) { return Where(current / kWarp * kWarp + lane); }

void RunGrid(const Grid& wanted) {
  if (sticky_error() != cudaSuccess) return;
  if (const cudaError_t error = CheckLaunch(wanted); error != cudaSuccess) {
    sticky_error() = error;
    return;
  }
  grid = wanted;
  num_threads = static_cast<int>(grid.threads.x * grid.threads.y * grid.threads.z);
  gridDim = grid.blocks;
  blockDim = grid.threads;
  failed = false;
  for (int i = 0; i < num_threads; ++i) {
    if (threads()[i].started) continue;
    threads()[i].fiber.Start(&ThreadMain);
    threads()[i].started = true;
  }
  ResetShared();
  dynamic_shared = grid.shared_bytes > 0 ? TakeShared(grid.shared_bytes) : nullptr;
  EnterScheduler();
  std::mt19937_64 random(options().seed);
  std::vector<int> turns = InOrder(static_cast<size_t>(num_threads));
  std::vector<int> blocks = InOrder(size_t{grid.blocks.x} * grid.blocks.y * grid.blocks.z);
  if (options().order == Order::kRandom) std::shuffle(blocks.begin(), blocks.end(), random);
  for (int b : blocks) {
    const unsigned block = static_cast<unsigned>(b);
    blockIdx = {block % grid.blocks.x, block / grid.blocks.x % grid.blocks.y,
                block / grid.blocks.x / grid.blocks.y};
    RunBlock(turns, random);
    if (failed) break;
  }
  Acquire(&end_edge);
  current = -1;
  if (!failed) return;
  for (Thread& thread : threads()) thread.started = false;  // their stacks are abandoned
}

void AllowSharedBytes(const void* kernel, size_t bytes) {
  allowed_shared()[kernel] = std::min(bytes, kMaxSharedBytes);
}

unsigned Lane() { return static_cast<unsigned>(current) % kWarp; }
void* DynamicShared() { return dynamic_shared; }

void* StaticShared(const void* key, size_t bytes) {
  for (const SharedPiece& piece : shared_pieces) {
    if (piece.key == key) return piece.data;
  }
  char* data = TakeShared(bytes);
  FillWithNan(data, bytes);
  shared_pieces.push_back({key, data, bytes});
  return data;
}

void BlockBarrier(Site site) {
  Thread& self = threads()[current];
  self.site = site;
  char* const edge = &barrier_edges[phase % 2];
  Release(edge);
  if (++num_waiting < num_threads) {
    self.state = State::kAtBarrier;
    self.fiber.Yield();
  } else {
    num_waiting = 0;
    ++phase;
    for (int i = 0; i < num_threads; ++i) {
      Thread& other = threads()[i];
      if (i == current) continue;
      if (other.site.line != site.line || other.site.file != site.file) {
        FailAndYield("threads meet at different barriers: " + Where(current) + "; " + Where(i));
      }
      other.state = State::kRunnable;
    }
  }
  Acquire(edge);
}

void WarpCollective(unsigned mask, Site site, void* argument, WarpOp op, bool orders_memory) {
  const int lane = current % kWarp, first = current - lane;
  Thread& self = threads()[current];
  Warp& warp = warps[current / kWarp];
  const unsigned bit = 1u << lane;
  mask &= warp.exist;
  self.site = site;
  self.mask = mask;
  self.op = op;
  warp.arguments[lane] = argument;
  warp.arrived |= bit;
  if (orders_memory) Release(&warp);
  if ((mask & bit) == 0) FailAndYield(Where(current) + ": the calling lane is not in its own mask");
  if ((mask & warp.returned) != 0) {
    FailAndYield(Where(current) + ": the mask names a lane that has returned");
  }
  if ((warp.arrived & mask) == mask) {
    for (int l = 0; l < kWarp; ++l) {
      const Thread& other = threads()[first + l];
      if ((mask >> l & 1) == 0 || (other.mask == mask && other.op == op)) continue;
      FailAndYield("lanes of a warp meet with different masks or operations: " + Where(current) +
                   "; " + Where(first + l));
    }
    op(mask, warp.arguments);
    if (failed) self.fiber.Yield();
    warp.arrived &= ~mask;
    for (int l = 0; l < kWarp; ++l) {
      if ((mask >> l & 1) != 0) threads()[first + l].state = State::kRunnable;
    }
  } else {
    self.state = State::kAtCollective;
    self.fiber.Yield();
  }
  if (orders_memory) Acquire(&warp);
}

}  // namespace headrace::emulation
