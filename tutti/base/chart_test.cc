#include "tutti/base/chart.h"

#include <gmock/gmock.h>

namespace tutti {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Chart, draws_every_point_and_escapes_text) {
  chart::Chart chart;
  chart.title = "a < b & c";
  chart.x = {.label = "workers", .least = 1, .most = 1024, .logarithmic = true};
  chart.y = {.label = "efficiency", .least = 0, .most = 1};
  chart.series = {{"ring", chart::Mark::Line, {{1, 1}, {1024, 0.5}}},
                  {"measured", chart::Mark::Dots, {{32, 0.75}}}};
  const std::string svg = chart::svg_of({chart});
  EXPECT_THAT(svg, HasSubstr("a &lt; b &amp; c"));
  EXPECT_THAT(svg, HasSubstr("<polyline"));
  EXPECT_THAT(svg, HasSubstr("<circle"));
  EXPECT_THAT(svg, HasSubstr("ring"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_LT(svg.size(), 100'000U);
  // 32 is the middle of a logarithmic axis from 1 to 1024, and 0.75 is a quarter from the top.
  EXPECT_THAT(svg, HasSubstr(chart::place_text(chart, 0, 32, 0.75)));
}

}  // namespace
}  // namespace tutti
