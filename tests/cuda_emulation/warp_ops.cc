#include "tests/cuda_emulation/warp_ops.h"

#include <string>

namespace headrace::emulation {
namespace {

constexpr int kWarp = 32;

template <typename Visit>
void ForLanes(unsigned mask, const Visit& visit) {
  for (int lane = 0; lane < kWarp; ++lane) {
    if ((mask >> lane & 1) != 0) visit(lane);
  }
}

struct ShuffleArgument {
  uint64_t in, out;
  int source;
};

void ShuffleOp(unsigned mask, void** lanes) {
  ForLanes(mask, [&](int lane) {
    auto* self = static_cast<ShuffleArgument*>(lanes[lane]);
    if ((mask >> self->source & 1) == 0) {
      return Fail("a shuffle reads lane " + std::to_string(self->source) +
                  ", which is not in the mask: " + WhereLane(lane));
    }
    self->out = static_cast<ShuffleArgument*>(lanes[self->source])->in;
  });
}

struct BallotArgument {
  bool in;
  unsigned out;
};

void BallotOp(unsigned mask, void** lanes) {
  unsigned votes = 0;
  ForLanes(mask, [&](int lane) {
    votes |= static_cast<unsigned>(static_cast<BallotArgument*>(lanes[lane])->in) << lane;
  });
  ForLanes(mask, [&](int lane) { static_cast<BallotArgument*>(lanes[lane])->out = votes; });
}

void NoOp(unsigned, void**) {}

// One of the two bfloat16 numbers of a register.
float Half(uint32_t packed, int upper) {
  const uint32_t bits = (upper != 0 ? packed >> 16 : packed & 0xffff) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

struct MmaArgument {
  float* d;
  const uint32_t* a;
  uint32_t b[2];
};

void MmaOp(unsigned mask, void** lanes) {
  if (mask != ~0u) return Fail("mma.sync needs all 32 lanes: " + WhereLane(0));
  float a[16][16], b[16][8];
  for (int lane = 0; lane < kWarp; ++lane) {
    const auto* x = static_cast<MmaArgument*>(lanes[lane]);
    const int group = lane / 4, pair = lane % 4 * 2;
    for (int h = 0; h < 2; ++h) {
      for (int r = 0; r < 4; ++r) {
        a[group + r % 2 * 8][pair + h + r / 2 * 8] = Half(x->a[r], h);
      }
      for (int r = 0; r < 2; ++r) b[pair + h + r * 8][group] = Half(x->b[r], h);
    }
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    const auto* x = static_cast<MmaArgument*>(lanes[lane]);
    const int group = lane / 4, pair = lane % 4 * 2;
    for (int c = 0; c < 4; ++c) {
      float sum = x->d[c];
      for (int k = 0; k < 16; ++k) sum += a[group + c / 2 * 8][k] * b[k][pair + c % 2];
      x->d[c] = sum;
    }
  }
}

struct LoadArgument {
  uint32_t* r;
  const uint16_t* row;
  bool aligned;
};

template <bool kTransposed>
void LoadOp(unsigned mask, void** lanes) {
  if (mask != ~0u) return Fail("ldmatrix needs all 32 lanes: " + WhereLane(0));
  uint16_t matrix[4][8][8];
  for (int lane = 0; lane < kWarp; ++lane) {
    const auto* x = static_cast<LoadArgument*>(lanes[lane]);
    if (!x->aligned) {
      return Fail("ldmatrix: a row's address is no multiple of 16: " + WhereLane(lane));
    }
    std::memcpy(matrix[lane / 8][lane % 8], x->row, 16);
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    const int group = lane / 4, pair = lane % 4 * 2;
    for (int j = 0; j < 4; ++j) {
      const uint16_t low = kTransposed ? matrix[j][pair][group] : matrix[j][group][pair];
      const uint16_t high = kTransposed ? matrix[j][pair + 1][group] : matrix[j][group][pair + 1];
      static_cast<LoadArgument*>(lanes[lane])->r[j] = low | static_cast<uint32_t>(high) << 16;
    }
  }
}

}  // namespace

uint64_t ShuffleBits(unsigned mask, uint64_t value, int source, Site site) {
  ShuffleArgument argument{value, 0, source};
  WarpCollective(mask, site, &argument, ShuffleOp, false);
  return argument.out;
}

unsigned Ballot(unsigned mask, bool predicate, Site site) {
  BallotArgument argument{predicate, 0};
  WarpCollective(mask, site, &argument, BallotOp, false);
  return argument.out;
}

void SyncWarp(unsigned mask, Site site) { WarpCollective(mask, site, nullptr, NoOp, true); }

void MmaBf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Site site) {
  MmaArgument argument{d, a, {b0, b1}};
  WarpCollective(~0u, site, &argument, MmaOp, false);
}

void LoadMatrices(uint32_t (&r)[4], const uint16_t (&row)[8], bool aligned, bool transposed,
                  Site site) {
  LoadArgument argument{r, row, aligned};
  WarpCollective(~0u, site, &argument, transposed ? LoadOp<true> : LoadOp<false>, false);
}

}  // namespace headrace::emulation
