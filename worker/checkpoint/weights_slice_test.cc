#include "worker/checkpoint/weights_slice.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/safetensors.h"
#include "common/sha256.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/temp_dir.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A parameter that views `values`.
Parameter MakeParameter(const std::string& name, std::vector<int64_t> shape,
                        std::vector<float>* values, bool borrowed = false) {
  Parameter parameter;
  parameter.spec.name = name;
  parameter.spec.shape = shape;
  parameter.weight = {values->data(), ElementType::kFloat32, shape};
  parameter.borrowed = borrowed;
  return parameter;
}

class WeightsSliceTest : public ::testing::Test {
 protected:
  const TempDir dir_;
  const std::string path_ = absl::StrCat(dir_.path(), "/slice");
};

TEST_F(WeightsSliceTest, HoldsOwnParametersInTheirOrderWithoutGaps) {
  std::vector<float> b = {1, 2, 3, 4, 5, 6}, a = {7}, tied = {9, 9};
  const auto slice =
      WriteWeightsSlice(path_, {MakeParameter("b", {2, 3}, &b), MakeParameter("a", {1}, &a),
                                MakeParameter("tied", {2}, &tied, /*borrowed=*/true)});
  ASSERT_TRUE(slice.ok()) << slice.status();

  const auto file = SafetensorsFile::Open(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ((*file)->tensors().size(), 2u);
  EXPECT_EQ((*file)->tensors()[0].name, "b");
  EXPECT_EQ((*file)->tensors()[1].name, "a");
  const float* payload = reinterpret_cast<const float*>((*file)->payload().data());
  EXPECT_EQ((*file)->payload().size(), 7 * sizeof(float));
  EXPECT_THAT(std::vector<float>(payload, payload + 7), ElementsAre(1, 2, 3, 4, 5, 6, 7));
}

TEST_F(WeightsSliceTest, SaysTheHashAndSizeOfTheFile) {
  std::vector<float> a = {1, 2};
  const auto slice = WriteWeightsSlice(path_, {MakeParameter("a", {2}, &a)});
  ASSERT_TRUE(slice.ok()) << slice.status();
  const std::string bytes = *ReadFile(path_);
  EXPECT_EQ(slice->sha256(), Sha256Hex(bytes));
  EXPECT_EQ(slice->size_bytes(), static_cast<int64_t>(bytes.size()));
}

TEST_F(WeightsSliceTest, NamesThePathItCannotWrite) {
  std::vector<float> a = {1};
  const auto slice =
      WriteWeightsSlice(absl::StrCat(dir_.path(), "/no/slice"), {MakeParameter("a", {1}, &a)});
  EXPECT_THAT(std::string(slice.status().message()), HasSubstr("/no/slice"));
}

TEST_F(WeightsSliceTest, LoadsByNameFromWhicheverFileHasIt) {
  std::vector<float> a = {1, 2}, b = {3};
  const std::string second = absl::StrCat(dir_.path(), "/second");
  ASSERT_TRUE(WriteWeightsSlice(path_, {MakeParameter("a", {2}, &a)}).ok());
  ASSERT_TRUE(WriteWeightsSlice(second, {MakeParameter("b", {1}, &b)}).ok());
  std::vector<float> to_b(1), to_a(2), borrowed(2);
  std::vector<Parameter> parameters = {MakeParameter("b", {1}, &to_b),
                                       MakeParameter("a", {2}, &to_a),
                                       MakeParameter("head", {2}, &borrowed, /*borrowed=*/true)};
  parameters[2].spec.owner = "a";
  ASSERT_TRUE(LoadWeights({path_, second}, &parameters).ok());
  EXPECT_THAT(to_b, ElementsAre(3));
  EXPECT_THAT(to_a, ElementsAre(1, 2));
  EXPECT_THAT(borrowed, ElementsAre(1, 2));
}

TEST_F(WeightsSliceTest, NamesATensorThatIsMissingOrOfAnotherShape) {
  std::vector<float> a = {1, 2};
  ASSERT_TRUE(WriteWeightsSlice(path_, {MakeParameter("a", {2}, &a)}).ok());
  std::vector<Parameter> missing = {MakeParameter("b", {2}, &a)};
  const absl::Status not_found = LoadWeights({path_}, &missing);
  EXPECT_TRUE(absl::IsNotFound(not_found));
  EXPECT_THAT(std::string(not_found.message()), HasSubstr("'b'"));

  std::vector<Parameter> reshaped = {MakeParameter("a", {2, 1}, &a)};
  const absl::Status mismatch = LoadWeights({path_}, &reshaped);
  EXPECT_TRUE(absl::IsInvalidArgument(mismatch));
  EXPECT_THAT(std::string(mismatch.message()), HasSubstr("'a' has shape [2], expected [2, 1]"));
}

}  // namespace
}  // namespace headrace
