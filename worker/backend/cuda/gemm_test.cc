// The reference product against loops in double. On a device the same shapes hold cuBLASLt to it.
#include "worker/backend/cuda/gemm.h"

#include "gmock/gmock.h"
#include "worker/backend/cuda/kernels_testing.h"

namespace headrace::cuda {
namespace {

template <typename T>
constexpr GemmType kType = sizeof(T) == 4 ? GemmType::kFloat32 : GemmType::kBfloat16;

double GeluOf(double x) {
  return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

template <typename In, typename Out>
void CheckProduct(GemmShape s) {
  s.in = kType<In>, s.out = kType<Out>;
  Doubles a = RandomValues(s.m * s.k, 1), b = RandomValues(s.k * s.n, 2);
  Doubles c = RandomValues(s.m * s.n, 3), bias = RandomValues(s.n, 4);
  Doubles aux = RandomValues(s.m * s.n, 5, 3);
  OnDevice<In> da(a), db(b);
  OnDevice<Out> dc(c), dbias(bias), daux(aux);
  const auto gemm = CreateReferenceGemm();
  EXPECT_EQ(gemm->Run(s, da.get(), db.get(), dc.get(), dbias.get(), daux.get(), nullptr), "");
  Doubles want(c.size()), want_aux = aux;
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t j = 0; j < s.n; ++j) {
      const auto at = static_cast<size_t>(i * s.n + j);
      double sum = s.accumulate ? c[at] : 0;
      for (int64_t k = 0; k < s.k; ++k) {
        sum += a[static_cast<size_t>(s.transpose_a ? k * s.m + i : i * s.k + k)] *
               b[static_cast<size_t>(s.transpose_b ? j * s.k + k : k * s.n + j)];
      }
      const bool has_bias = s.epilogue == Epilogue::kBias || s.epilogue == Epilogue::kBiasGelu ||
                            s.epilogue == Epilogue::kBiasAdd;
      const bool adds = s.epilogue == Epilogue::kAdd || s.epilogue == Epilogue::kBiasAdd;
      if (adds) sum += aux[at];
      if (has_bias) sum += bias[static_cast<size_t>(j)];
      want[at] = sum;
      if (s.epilogue == Epilogue::kBiasGelu) {
        want_aux[at] = sum;
        want[at] = GeluOf(sum);
      }
      if (s.epilogue == Epilogue::kGeluBackward) {
        want[at] = sum * (GeluOf(aux[at] + 1e-6) - GeluOf(aux[at] - 1e-6)) / 2e-6;
      }
    }
  }
  ExpectClose(dc.doubles(), want, 2 * kBound<Out>, "c");
  ExpectClose(daux.doubles(), want_aux, 2 * kBound<Out>, "aux");
}

TEST(ReferenceProducts, MatchDoubleLoops) {
  for (bool ta : {false, true}) {
    for (bool tb : {false, true}) {
      GemmShape s{.m = 17, .n = 33, .k = 5, .transpose_a = ta, .transpose_b = tb};
      s.accumulate = ta;
      CheckProduct<float, float>(s);
      CheckProduct<Bf16, float>(s);
      CheckProduct<Bf16, Bf16>(s);
    }
  }
  CheckProduct<float, float>({.m = 1, .n = 1, .k = 1});
}

TEST(ReferenceProducts, HaveEpilogues) {
  for (Epilogue epilogue : {Epilogue::kAdd, Epilogue::kBias, Epilogue::kBiasAdd,
                            Epilogue::kBiasGelu, Epilogue::kGeluBackward}) {
    GemmShape s{.m = 7, .n = 19, .k = 11, .transpose_b = true};
    s.epilogue = epilogue;
    CheckProduct<float, float>(s);
    CheckProduct<Bf16, Bf16>(s);
  }
}

TEST(ReferenceProducts, AreDescribedByShapeAndType) {
  EXPECT_EQ(Describe("product", {.m = 2, .n = 3, .k = 4, .in = GemmType::kBfloat16}),
            "product [2, 4] · [4, 3], bf16");
}

}  // namespace
}  // namespace headrace::cuda
