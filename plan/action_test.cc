#include "plan/action.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ActionTest, PrintsChunkKindMicroBatch) {
  EXPECT_EQ(ToText(Action{1, ActionKind::kForward, 3}), "1F3");
  EXPECT_EQ(ToText(Action{0, ActionKind::kRecompute, 12}), "0R12");
  EXPECT_EQ(ToText(Action{17, ActionKind::kBackward, 0}), "17B0");
}

TEST(ActionTest, ParsesWhatItPrints) {
  const std::vector<Action> actions = {{2, ActionKind::kForward, 0},
                                       {2, ActionKind::kForward, 1},
                                       {2, ActionKind::kRecompute, 0},
                                       {2, ActionKind::kBackward, 0}};
  EXPECT_EQ(ToText(actions), "2F0 2F1 2R0 2B0");
  const auto parsed = ParseActions(ToText(actions));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, actions);
}

TEST(ActionTest, AcceptsAnySpacesAndNothing) {
  EXPECT_THAT(*ParseActions(""), IsEmpty());
  EXPECT_THAT(*ParseActions(" \n"), IsEmpty());
  EXPECT_THAT(*ParseActions("  0F0\n\t0B0 "),
              ElementsAre(Action{0, ActionKind::kForward, 0}, Action{0, ActionKind::kBackward, 0}));
}

TEST(ActionTest, NamesTheWordThatIsNotAnActionAndItsPlace) {
  for (const char* word :
       {"F1", "1F", "1", "1X2", "1F-2", "-1F2", "1f2", "1F2B", "1F2.5", "1F99999999999", "x1F2"}) {
    const auto parsed = ParseActions(absl::StrCat("0F0 ", word, " 0B0"));
    ASSERT_FALSE(parsed.ok()) << word;
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << word;
    EXPECT_THAT(parsed.status().message(),
                HasSubstr(absl::StrCat("action 2 (character 5) is \"", word, "\"")));
  }
}

}  // namespace
}  // namespace headrace
