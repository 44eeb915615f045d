// What the tests of bf16 products share.
#pragma once

#include <cmath>
#include <memory>

#include "worker/backend/ops_testing.h"

namespace headrace {

// To 8 significant bits, ties to even, by arithmetic instead of bits.
inline double Rounded(double x) {
  if (x == 0) return 0;
  int exponent = 0;
  const double mantissa = std::frexp(x, &exponent);  // [0.5, 1)
  return std::ldexp(std::nearbyint(std::ldexp(mantissa, 8)), exponent - 8);
}

inline Doubles Rounded(Doubles x) {
  for (double& value : x) value = Rounded(value);
  return x;
}

// Ops with the panels they need.
class Bf16Ops {
 public:
  Bf16Ops(Precision precision, int threads)
      : panels_(PanelBytes(precision, threads) / 4),
        ops_(CreateCpuOps(threads, precision, panels_.data())) {}
  Ops* operator->() { return ops_.get(); }

 private:
  Buffer panels_;
  std::unique_ptr<Ops> ops_;
};

}  // namespace headrace
