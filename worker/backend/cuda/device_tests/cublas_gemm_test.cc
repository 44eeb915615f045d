// cuBLASLt against the reference product on the device, at the shapes that training has and at odd
// ones. The largest error of each type goes into the test's report (RecordProperty).
#include <cuda_runtime_api.h>

#include <map>
#include <utility>

#include "gtest/gtest.h"
#include "plan/alignment.h"
#include "worker/backend/cuda/gemm.h"
#include "worker/backend/cuda/kernels.h"
#include "worker/backend/cuda/kernels_testing.h"

namespace headrace::cuda {
namespace {

constexpr size_t kWorkspaceBytes = 32 << 20;

// Device memory, freed with its owner.
class Buffer {
 public:
  explicit Buffer(int64_t bytes) {
    EXPECT_CUDA_OK(cudaMalloc(&data_, static_cast<size_t>(bytes + kAlignment)));
  }
  ~Buffer() { cudaFree(data_); }
  Buffer(const Buffer&) = delete;
  // `shift` bytes behind an address aligned to 256.
  void* at(int64_t shift) const { return static_cast<char*>(data_) + shift; }

 private:
  void* data_ = nullptr;
};

// Normal numbers of `type`, drawn on the device: hosts are slow at as many as these.
std::unique_ptr<Buffer> Draw(int64_t count, GemmType type, uint32_t seed, int64_t shift = 0) {
  auto numbers = std::make_unique<Buffer>(count * 4);
  const RandomStream stream = MakeStream(seed, RandomPurpose::kInit, 1, 2, 3);
  auto* f32 = static_cast<float*>(numbers->at(type == GemmType::kFloat32 ? shift : 0));
  EXPECT_CUDA_OK(FillNormal(f32, count, 1, stream, nullptr));
  if (type == GemmType::kFloat32) return numbers;
  auto narrow = std::make_unique<Buffer>(count * 2);
  EXPECT_CUDA_OK(NarrowBf16(f32, static_cast<uint16_t*>(narrow->at(shift)), count, nullptr));
  EXPECT_CUDA_OK(cudaDeviceSynchronize());
  return narrow;
}

std::vector<float> ReadFloats(const void* from, int64_t count, GemmType type) {
  std::vector<float> numbers(static_cast<size_t>(count));
  if (type == GemmType::kFloat32) {
    EXPECT_CUDA_OK(cudaMemcpy(numbers.data(), from, numbers.size() * 4, cudaMemcpyDeviceToHost));
    return numbers;
  }
  std::vector<uint16_t> narrow(numbers.size());
  EXPECT_CUDA_OK(cudaMemcpy(narrow.data(), from, narrow.size() * 2, cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < narrow.size(); ++i) {
    const uint32_t bits = uint32_t{narrow[i]} << 16;
    std::memcpy(&numbers[i], &bits, 4);
  }
  return numbers;
}

struct Result {
  std::vector<float> c, aux;
};

// Runs `s` on drawn numbers that lie `shift` bytes behind aligned addresses.
Result Compute(Gemm* gemm, const GemmShape& s, int64_t shift = 0) {
  const auto a = Draw(s.m * s.k, s.in, 1, shift), b = Draw(s.k * s.n, s.in, 2, shift);
  const auto c = Draw(s.m * s.n, s.out, 3, shift), bias = Draw(s.n, s.out, 4, shift);
  const auto aux = Draw(s.m * s.n, s.out, 5, shift);
  EXPECT_EQ(gemm->Run(s, a->at(shift), b->at(shift), c->at(shift), bias->at(shift), aux->at(shift),
                      nullptr),
            "");
  EXPECT_CUDA_OK(cudaDeviceSynchronize());
  return {ReadFloats(c->at(shift), s.m * s.n, s.out), ReadFloats(aux->at(shift), s.m * s.n, s.out)};
}

// max |actual − expected| / max(|expected|, root mean square of expected); NaN counts as infinite.
double Error(const std::vector<float>& actual, const std::vector<float>& expected) {
  double squares = 0, worst = 0;
  for (float e : expected) squares += static_cast<double>(e) * e;
  const double rms = std::sqrt(squares / static_cast<double>(expected.size()));
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = std::abs(static_cast<double>(actual[i]) - expected[i]) /
                         std::fmax(std::abs(static_cast<double>(expected[i])), rms);
    worst = std::isnan(error) ? INFINITY : std::fmax(worst, error);
  }
  return worst;
}

std::string TypeName(const GemmShape& s) {
  const std::string in = s.in == GemmType::kFloat32 ? "fp32" : "bf16";
  return s.out == GemmType::kFloat32 ? in + "_to_fp32" : in + "_to_bf16";
}

// Sums of k terms in two orders differ by some √k units in the last place of fp32. A bfloat16
// result may besides lie on either side of a rounding: one unit, 2^-7 of the number at most.
double BoundOf(const GemmShape& s) {
  const double sums = 6e-7 * std::sqrt(static_cast<double>(s.k)) + 1e-6;
  if (s.out == GemmType::kFloat32 && s.epilogue == Epilogue::kNone) return sums;
  // The epilogues' tanh is an approximation of its own.
  return s.out == GemmType::kFloat32 ? sums + 1e-4 : sums + 8e-3;
}

class CublasLtProducts : public ::testing::Test {
 protected:
  CublasLtProducts() : workspace_(kWorkspaceBytes), reference_(CreateReferenceGemm()) {}
  void SetUp() override {
    lt_ = Create(false);
    ASSERT_NE(lt_, nullptr);
  }
  void TearDown() override {
    for (const auto& [type, error] : worst_) RecordProperty(type, std::to_string(error));
  }
  std::unique_ptr<Gemm> Create(bool tf32) {
    std::string error;
    auto gemm = CreateCublasLtGemm(workspace_.at(0), kWorkspaceBytes, tf32, &error);
    EXPECT_EQ(error, "");
    return gemm;
  }

  // For every pair of types of which there is a product.
  void CheckTypes(GemmShape s) {
    for (const auto& [in, out] : {std::pair(GemmType::kFloat32, GemmType::kFloat32),
                                  std::pair(GemmType::kBfloat16, GemmType::kFloat32),
                                  std::pair(GemmType::kBfloat16, GemmType::kBfloat16)}) {
      s.in = in, s.out = out;
      Check(s);
    }
  }
  void Check(const GemmShape& s) {
    SCOPED_TRACE(Describe("product", s) + (s.transpose_a ? " aT" : "") +
                 (s.transpose_b ? " bT" : "") + (s.accumulate ? " +=" : "") + " to " + TypeName(s));
    const Result got = Compute(lt_.get(), s), want = Compute(reference_.get(), s);
    const double error = Error(got.c, want.c);
    EXPECT_LE(error, BoundOf(s)) << "c";
    EXPECT_LE(Error(got.aux, want.aux), BoundOf(s)) << "aux";
    double& worst = worst_[TypeName(s)];
    worst = std::fmax(worst, error);
  }

  Buffer workspace_;
  std::unique_ptr<Gemm> reference_, lt_;
  std::map<std::string, double> worst_;
};

// Forward, input gradient and weight gradient of a linear layer.
std::vector<GemmShape> OfLayer(int64_t tokens, int64_t in, int64_t out) {
  return {{.m = tokens, .n = out, .k = in, .transpose_b = true},
          {.m = tokens, .n = in, .k = out},
          {.m = out, .n = in, .k = tokens, .transpose_a = true, .accumulate = true}};
}

TEST_F(CublasLtProducts, OfAGptMatchTheReference) {
  for (const auto& [in, out] : {std::pair<int64_t, int64_t>(768, 2304), {768, 3072}, {3072, 768}}) {
    for (const GemmShape& s : OfLayer(1024, in, out)) CheckTypes(s);
  }
}

TEST_F(CublasLtProducts, OfItsHeadMatchTheReference) {
  for (const GemmShape& s : OfLayer(256, 768, 50257)) CheckTypes(s);
}

TEST_F(CublasLtProducts, OfOddSizesMatchTheReference) {
  for (int64_t odd : {1, 3, 17}) {
    for (const GemmShape& s : OfLayer(odd, 33, 5)) CheckTypes(s);
    for (const GemmShape& s : OfLayer(64 + odd, 132, 97)) CheckTypes(s);
  }
}

TEST_F(CublasLtProducts, HaveTheReferencesEpilogues) {
  for (Epilogue epilogue : {Epilogue::kAdd, Epilogue::kBias, Epilogue::kBiasAdd,
                            Epilogue::kBiasGelu, Epilogue::kGeluBackward}) {
    GemmShape s{.m = 1024, .n = 3072, .k = 768};
    s.epilogue = epilogue;
    s.transpose_b = epilogue != Epilogue::kGeluBackward;
    for (GemmType type : {GemmType::kFloat32, GemmType::kBfloat16}) {
      s.in = s.out = type;
      // Ops take steps where there is none; in bf16 that would cost what tensor cores gain.
      if (type == GemmType::kFloat32 && !lt_->Has(s)) continue;
      Check(s);
    }
  }
}

// A row of 33 numbers is no multiple of 16 bytes, which some of cuBLASLt's epilogues want.
TEST_F(CublasLtProducts, OfOddSizesHaveTheReferencesEpiloguesOrSayThatTheyHaveNot) {
  for (Epilogue epilogue : {Epilogue::kAdd, Epilogue::kBias, Epilogue::kBiasAdd,
                            Epilogue::kBiasGelu, Epilogue::kGeluBackward}) {
    GemmShape s{.m = 17, .n = 33, .k = 65};
    s.epilogue = epilogue;
    for (GemmType type : {GemmType::kFloat32, GemmType::kBfloat16}) {
      s.in = s.out = type;
      if (lt_->Has(s)) Check(s);
    }
  }
}

TEST_F(CublasLtProducts, GiveTheSameBitsTwiceAndAtAnyAddress) {
  for (GemmShape s : OfLayer(1024, 768, 2304)) {
    for (GemmType type : {GemmType::kFloat32, GemmType::kBfloat16}) {
      s.in = type;
      SCOPED_TRACE(Describe("product", s));
      const Result first = Compute(lt_.get(), s);
      EXPECT_EQ(first.c, Compute(lt_.get(), s).c);
      EXPECT_EQ(first.c, Compute(lt_.get(), s, kAlignment).c) << "at another address";
      EXPECT_EQ(first.c, Compute(Create(false).get(), s).c) << "by another handle";
    }
  }
}

TEST_F(CublasLtProducts, RoundToTf32OnlyWhereAskedFor) {
  const GemmShape s{.m = 512, .n = 512, .k = 512, .transpose_b = true};
  const Result want = Compute(reference_.get(), s);
  const double exact = Error(Compute(lt_.get(), s).c, want.c);
  const double tf32 = Error(Compute(Create(true).get(), s).c, want.c);
  EXPECT_LT(exact, 2e-5);
  EXPECT_LT(tf32, 1e-2);
  EXPECT_GT(tf32, 5 * exact) << "TF32 has 11 bits, fp32 has 24";
  RecordProperty("tf32", std::to_string(tf32));
}

}  // namespace
}  // namespace headrace::cuda
