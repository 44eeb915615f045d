#include "worker/backend/cuda/kernels.h"
#include "worker/backend/cuda/kernels_testing.h"

namespace headrace::cuda {
namespace {

template <typename T>
class EmbeddingKernels : public ::testing::Test {};
TYPED_TEST_SUITE(EmbeddingKernels, ActivationTypes);

struct Size {
  int64_t sequences, length, width, vocabulary;
};
// The second has more tokens than a block looks at together, most of them of few ids.
const Size kSizes[] = {{1, 1, 1, 3}, {2, 131, 9, 5}, {3, 7, 40, 1000}};

TYPED_TEST(EmbeddingKernels, LookUpRowsAndAddPositions) {
  using T = TypeParam;
  for (const Size& s : kSizes) {
    const int64_t n = s.sequences * s.length;
    Doubles ids = RandomIds(n, 1, s.vocabulary), wte = RandomValues(s.vocabulary * s.width, 2);
    Doubles wpe = RandomValues(s.length * s.width, 3);
    OnDevice<int32_t> dids(ids);
    OnDevice<float> dwte(wte, 1), dwpe(wpe);
    for (bool positions : {false, true}) {
      OnDevice<T> y(n * s.width);
      EXPECT_CUDA_OK(Embedding<T>(dids.get(), dwte.get(), positions ? dwpe.get() : nullptr, y.get(),
                                  n, s.length, s.width, nullptr));
      Doubles want;
      for (int64_t t = 0; t < n; ++t) {
        for (int64_t j = 0; j < s.width; ++j) {
          const double token =
              wte[static_cast<size_t>(ids[static_cast<size_t>(t)]) * static_cast<size_t>(s.width) +
                  static_cast<size_t>(j)];
          want.push_back(token +
                         (positions ? wpe[static_cast<size_t>(t % s.length * s.width + j)] : 0));
        }
      }
      ExpectClose(y.doubles(), want, kBound<T>, "y");
    }
  }
}

TYPED_TEST(EmbeddingKernels, AddGradientsTokenAfterToken) {
  using T = TypeParam;
  for (const Size& s : kSizes) {
    const int64_t n = s.sequences * s.length;
    Doubles ids = RandomIds(n, 1, s.vocabulary), dy = RandomValues(n * s.width, 2);
    Doubles wte = RandomValues(s.vocabulary * s.width, 3),
            wpe = RandomValues(s.length * s.width, 4);
    OnDevice<int32_t> dids(ids);
    OnDevice<T> ddy(dy, 1);
    OnDevice<float> dwte(wte), dwpe(wpe);
    EXPECT_CUDA_OK(EmbeddingBackward<T>(dids.get(), ddy.get(), dwte.get(), dwpe.get(), n, s.length,
                                        s.width, nullptr));
    // In fp32 and in the order the contract names, hence to the last bit.
    std::vector<float> want_wte(wte.begin(), wte.end()), want_wpe(wpe.begin(), wpe.end());
    for (int64_t t = 0; t < n; ++t) {
      for (int64_t j = 0; j < s.width; ++j) {
        const auto d = static_cast<float>(dy[static_cast<size_t>(t * s.width + j)]);
        const auto id = static_cast<int64_t>(ids[static_cast<size_t>(t)]);
        want_wte[static_cast<size_t>(id * s.width + j)] += d;
        want_wpe[static_cast<size_t>(t % s.length * s.width + j)] += d;
      }
    }
    EXPECT_EQ(dwte.Read(), want_wte);
    EXPECT_EQ(dwpe.Read(), want_wpe);
  }
}

}  // namespace
}  // namespace headrace::cuda
