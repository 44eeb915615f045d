#include "worker/pipeline/verdict.h"

#include <limits>

#include "gtest/gtest.h"

namespace headrace {
namespace {

TEST(VerdictTest, HasTheNumberOfItsDrawing) {
  EXPECT_EQ(NumberOf({}), 0);
  EXPECT_EQ(NumberOf({.fate = Fate::kStop}), 1);
  EXPECT_EQ(NumberOf({.fate = Fate::kSkip}), 2);
  EXPECT_EQ(NumberOf({.fate = Fate::kRollback}), 4);
  EXPECT_EQ(NumberOf({.checkpoint = true}), 8);
  EXPECT_EQ(NumberOf({.replicate = true}), 16);
  EXPECT_EQ(NumberOf({.leave = true}), 32);
  EXPECT_EQ(NumberOf({.fate = Fate::kSkip, .checkpoint = true, .leave = true}), 42);
}

TEST(VerdictTest, IsReadBackFromItsNumber) {
  for (const Fate fate : {Fate::kApply, Fate::kStop, Fate::kSkip, Fate::kRollback}) {
    for (int bits = 0; bits < 8; ++bits) {
      const Verdict verdict{fate, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0};
      const absl::StatusOr<Verdict> read = VerdictOf(NumberOf(verdict));
      ASSERT_TRUE(read.ok()) << read.status();
      EXPECT_TRUE(*read == verdict) << NumberOf(verdict);
    }
  }
}

TEST(VerdictTest, OtherNumbersAreRefused) {
  for (const double number :
       {-1.0, 0.5, 3.0, 7.0, 64.0, 1e300, std::numeric_limits<double>::infinity(),
        std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_TRUE(absl::IsInvalidArgument(VerdictOf(number).status())) << number;
  }
}

TEST(VerdictTest, SaysWhetherAStepHasAState) {
  EXPECT_TRUE((Verdict{.fate = Fate::kRollback}).breaks_off());
  EXPECT_TRUE((Verdict{.fate = Fate::kStop}).breaks_off());
  EXPECT_FALSE((Verdict{.fate = Fate::kSkip, .leave = true}).breaks_off());
  EXPECT_FALSE((Verdict{.fate = Fate::kSkip}).applied());
  EXPECT_TRUE((Verdict{.leave = true}).applied());
}

}  // namespace
}  // namespace headrace
