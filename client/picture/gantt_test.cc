#include "client/picture/gantt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headrace {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Gantt OneRow(std::vector<Bar> bars) {
  Gantt gantt;
  gantt.title = "Schedule";
  gantt.rows.push_back({"stage 0", std::move(bars)});
  return gantt;
}

TEST(GanttTest, WritesANumberWhereItFits) {
  const std::string svg =
      *DrawGantt(OneRow({{BarKind::kForward, 41, 0, 0.5}, {BarKind::kForward, 42, 0.5, 0.501}}));
  EXPECT_THAT(svg, HasSubstr(">41</text>"));
  EXPECT_THAT(svg, Not(HasSubstr(">42</text>")));
}

TEST(GanttTest, TheLegendNamesWhatThereIs) {
  const std::string svg =
      *DrawGantt(OneRow({{BarKind::kForward, 0, 0, 1}, {BarKind::kWait, -1, 1, 2}}));
  EXPECT_THAT(svg, HasSubstr(">forward</text>"));
  EXPECT_THAT(svg, HasSubstr(">waiting</text>"));
  EXPECT_THAT(svg, Not(HasSubstr(">recompute</text>")));
}

TEST(GanttTest, TheAxisHasAUnitThatSuits) {
  const auto unit = [](double seconds) {
    const std::string svg = *DrawGantt(OneRow({{BarKind::kForward, 0, 0, seconds}}));
    const size_t at = svg.find("time, ");
    return svg.substr(at + 6, svg.find('<', at) - at - 6);
  };
  EXPECT_EQ(unit(5e-4), "µs");
  EXPECT_EQ(unit(0.2), "ms");
  EXPECT_EQ(unit(20), "s");
  EXPECT_EQ(unit(900), "min");
  EXPECT_EQ(unit(1e5), "h");
}

TEST(GanttTest, TextIsEscaped) {
  Gantt gantt = OneRow({{BarKind::kForward, 0, 0, 1}});
  gantt.title = "a<b & \"c\"";
  EXPECT_THAT(*DrawGantt(gantt), HasSubstr("a&lt;b &amp; &quot;c&quot;"));
}

TEST(GanttTest, RefusesAPictureNobodyCouldOpen) {
  const auto drawn = DrawGantt(OneRow(std::vector<Bar>(kMaxBars + 1)));
  EXPECT_EQ(drawn.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(drawn.status().message(), "a picture of 200001 bars is too large; at most 200000");
}

TEST(GanttTest, NothingToDrawIsAPictureToo) {
  EXPECT_THAT(*DrawGantt(Gantt()), HasSubstr("</svg>"));
}

}  // namespace
}  // namespace headrace
