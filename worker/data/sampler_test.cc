#include "worker/data/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/temp_dir.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

// A file of the tokens 0, 1, 2, …, so that a token tells its place.
std::unique_ptr<TokenFile> Counting(const TempDir& dir, int n) {
  std::string content = TokenHeader(2, n, n - 1);
  for (int i = 0; i < n; ++i) {
    content += static_cast<char>(i & 255);
    content += static_cast<char>(i >> 8);
  }
  EXPECT_TRUE(WriteFileAtomically(dir / "tokens", content).ok());
  auto file = TokenFile::Open(dir / "tokens");
  EXPECT_TRUE(file.ok()) << file.status();
  return *std::move(file);
}

v1::DataSpec Data(double split, uint64_t seed = 7) {
  v1::DataSpec data;
  data.set_validation_split(split);
  data.set_seed(seed);
  return data;
}

constexpr int kLength = 5;
constexpr int kBatch = 4;

class SamplerTest : public testing::Test {
 protected:
  absl::StatusOr<Sampler> Create(const v1::DataSpec& data, int64_t vocabulary = 1000) {
    return Sampler::Create(tokens_.get(), data, kLength, kBatch, vocabulary);
  }
  static std::vector<int32_t> Ids(const Sampler& sampler, int64_t step) {
    std::vector<int32_t> ids(kBatch * kLength);
    sampler.Training(step, 0, kBatch, ids.data(), nullptr);
    return ids;
  }

  TempDir dir_;
  std::unique_ptr<TokenFile> tokens_ = Counting(dir_, 1000);
};

TEST_F(SamplerTest, TargetsAreTheNextTokens) {
  const auto sampler = Create(Data(0.1));
  ASSERT_TRUE(sampler.ok()) << sampler.status();
  std::vector<int32_t> ids(kBatch * kLength), targets(kBatch * kLength);
  sampler->Training(3, 0, kBatch, ids.data(), targets.data());
  for (int s = 0; s < kBatch; ++s) {
    for (int t = 0; t < kLength; ++t) {
      EXPECT_EQ(ids[s * kLength + t], ids[s * kLength] + t);
      EXPECT_EQ(targets[s * kLength + t], ids[s * kLength + t] + 1);
    }
  }
}

TEST_F(SamplerTest, ASplitMiniBatchIsTheWholeOne) {
  const auto sampler = Create(Data(0.1));
  std::vector<int32_t> parts(kBatch * kLength);
  for (int s = 0; s < kBatch; ++s) {
    sampler->Training(12, s, 1, parts.data() + s * kLength, nullptr);
  }
  EXPECT_EQ(parts, Ids(*sampler, 12));
}

TEST_F(SamplerTest, AStepIsTheSameAgainAndOthersDiffer) {
  const auto sampler = Create(Data(0.1));
  EXPECT_EQ(Ids(*sampler, 1), Ids(*sampler, 1));
  EXPECT_NE(Ids(*sampler, 1), Ids(*sampler, 2));
  EXPECT_NE(Ids(*sampler, 1), Ids(*sampler, 1 + (int64_t{1} << 32)));
  EXPECT_NE(Ids(*sampler, 1), Ids(*Create(Data(0.1, /*seed=*/8)), 1));
}

TEST_F(SamplerTest, TrainingAndValidationShareNoToken) {
  const auto sampler = Create(Data(0.25));
  ASSERT_TRUE(sampler->has_validation());
  std::vector<int32_t> ids(kBatch * kLength), targets(kBatch * kLength);
  for (int step = 1; step < 2000; ++step) {
    sampler->Training(step, 0, kBatch, ids.data(), targets.data());
    EXPECT_GE(*std::min_element(ids.begin(), ids.end()), 0);
    ASSERT_LT(*std::max_element(targets.begin(), targets.end()), 750);
    sampler->Validation(step, 0, kBatch, ids.data(), targets.data());
    ASSERT_GE(*std::min_element(ids.begin(), ids.end()), 750);
    ASSERT_LT(*std::max_element(targets.begin(), targets.end()), 1000);
  }
}

TEST_F(SamplerTest, TrainingReachesBothEndsOfItsPart) {
  const auto sampler = Create(Data(0.9));
  int32_t least = 1000, most = 0;
  std::vector<int32_t> ids(kBatch * kLength), targets(kBatch * kLength);
  for (int step = 1; step < 500; ++step) {
    sampler->Training(step, 0, kBatch, ids.data(), targets.data());
    least = std::min(least, *std::min_element(ids.begin(), ids.end()));
    most = std::max(most, *std::max_element(targets.begin(), targets.end()));
  }
  EXPECT_EQ(least, 0);
  EXPECT_EQ(most, 99);
}

TEST_F(SamplerTest, ValidationSpreadsEvenlyFromItsFirstSequencesOn) {
  const auto sampler = Create(Data(0.5));
  std::vector<int32_t> starts;
  for (int batch = 0; batch < 4; ++batch) {
    for (int s = 0; s < kBatch; ++s) {
      int32_t ids[kLength];
      sampler->Validation(batch, s, 1, ids, nullptr);
      starts.push_back(ids[0]);
    }
  }
  std::sort(starts.begin(), starts.end());
  // 16 sequences in 500 tokens: evenly they would lie 31 apart.
  EXPECT_LT(starts.front(), 500 + 62);
  EXPECT_GT(starts.back(), 1000 - 62 - kLength);
  for (size_t i = 1; i < starts.size(); ++i) EXPECT_LT(starts[i] - starts[i - 1], 62);
}

TEST_F(SamplerTest, DefaultSplitIsATenth) {
  const auto sampler = Create(v1::DataSpec());
  ASSERT_TRUE(sampler.ok());
  int32_t ids[kLength];
  sampler->Validation(0, 0, 1, ids, nullptr);
  EXPECT_EQ(ids[0], 900);
}

TEST_F(SamplerTest, NoSplitNeedsNoValidationPart) {
  const auto sampler = Create(Data(0));
  ASSERT_TRUE(sampler.ok());
  EXPECT_FALSE(sampler->has_validation());
}

TEST_F(SamplerTest, SaysWhatIsTooShort) {
  tokens_ = Counting(dir_, 6);
  EXPECT_TRUE(Create(Data(0)).ok());  // exactly one sequence and its next token
  EXPECT_EQ(Ids(*Create(Data(0)), 1)[0], 0);
  tokens_ = Counting(dir_, 5);
  absl::Status status = Create(Data(0)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("training part of the data has 5 tokens"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("need 6"));
  tokens_ = Counting(dir_, 50);
  status = Create(Data(0.1)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("validation part of the data has 5 tokens"));
}

TEST_F(SamplerTest, RefusesATokenBeyondTheVocabulary) {
  EXPECT_TRUE(Create(Data(0), 1000).ok());
  const absl::Status status = Create(Data(0), 999).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("token 999, the vocabulary ends at 998"));
}

TEST_F(SamplerTest, RefusesASplitThatIsNoShare) {
  for (const double split : {-0.1, 1.0, 2.0, std::nan("")}) {
    EXPECT_EQ(Create(Data(split)).status().code(), absl::StatusCode::kInvalidArgument) << split;
  }
}

}  // namespace
}  // namespace headrace
