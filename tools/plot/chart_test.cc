#include "tools/plot/chart.h"

#include <cmath>
#include <limits>
#include <regex>
#include <set>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tools/plot/chart_text.h"

namespace tutti::chart::chart_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

size_t count_of(const std::string& part, const std::string& text) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// Returns the lines of the curves, "M1.0 2.0L3.0 4.0", in the order of the text. They may be longer than what
// std::regex can take.
std::vector<std::string> curves_in(const std::string& svg) {
  const std::regex head(R"re(class="curve" stroke="#[0-9a-f]+"(?: stroke-dasharray="[^"]*")? d=")re");
  std::vector<std::string> found;
  for (std::sregex_iterator match(svg.begin(), svg.end(), head), end; match != end; ++match) {
    const auto at = static_cast<size_t>(match->position() + match->length());
    std::string line = svg.substr(at, svg.find('"', at) - at);
    if (line.starts_with('M') && line.find_first_of("Llh") == line.find('L') && line.find('L') != line.npos)
      found.push_back(std::move(line));
  }
  return found;
}

// Returns the numbers of a curve: x, y, x, y.
std::vector<double> numbers_in(const std::string& curve) {
  std::vector<double> numbers;
  const std::regex number("[0-9.]+");
  for (std::sregex_iterator match(curve.begin(), curve.end(), number), end; match != end; ++match)
    numbers.push_back(std::stod(match->str()));
  return numbers;
}

std::string draw(std::vector<Point> points, const Axis& y = {}) {
  return svg_of({{.title = "loss",
                  .y = y,
                  .series = {{.name = "run", .points = std::move(points)}},
                  .legend = Legend::None}});
}

TEST(Charts, have_a_line_per_curve_and_a_dot_for_a_single_point) {
  EXPECT_EQ(curves_in(draw({{1, 1}, {2, 2}})).size(), 1U);
  EXPECT_THAT(draw({{1, 1}}), HasSubstr("<circle"));
  const std::string empty = draw({});
  EXPECT_THAT(curves_in(empty), IsEmpty());
  EXPECT_THAT(empty, Not(HasSubstr("nan")));
  EXPECT_THAT(svg_of({}), HasSubstr("</svg>"));
}

// The higher value is higher on the page, and the later one further right.
TEST(Charts, put_values_where_they_belong) {
  const std::vector<double> linear = numbers_in(curves_in(draw({{0, 0}, {5, 5}, {10, 10}})).at(0));
  ASSERT_EQ(linear.size(), 6U);
  EXPECT_LT(linear[0], linear[4]);
  EXPECT_GT(linear[1], linear[5]);
  EXPECT_NEAR(linear[3], (linear[1] + linear[5]) / 2, 0.11);
  const std::vector<double> powers =
      numbers_in(curves_in(draw({{0, 1}, {5, 32}, {10, 1024}}, {.logarithmic = true})).at(0));
  EXPECT_NEAR(powers[3], (powers[1] + powers[5]) / 2, 0.11);
}

TEST(Charts, draw_each_mark_and_name_it_in_the_legend) {
  Chart chart;
  chart.x = {.label = "workers", .least = 1, .most = 1024, .logarithmic = true};
  for (const Mark mark : {Mark::Line, Mark::Dashes, Mark::Dotted, Mark::Dots, Mark::Rings, Mark::Diamonds})
    chart.series.push_back({"series", mark, {{1, 1}, {1024, 0.5}}});
  for (const Legend legend : {Legend::LowerLeft, Legend::UpperLeft, Legend::UpperRight}) {
    chart.legend = legend;
    const std::string svg = svg_of({chart});
    EXPECT_EQ(count_of(">series</text>", svg), 6U);
    EXPECT_EQ(count_of("<circle", svg), 2U * 3);
    EXPECT_EQ(count_of("fill=\"none\"", svg), 3U);             // rings
    EXPECT_EQ(count_of("l4.5 4.5l-4.5 4.5", svg), 3U);         // diamonds
    EXPECT_EQ(count_of("stroke-dasharray=\"7 4\"", svg), 2U);  // dashes
    EXPECT_EQ(count_of("stroke-dasharray=\"2 4\"", svg), 2U);  // dotted
    EXPECT_THAT(svg, HasSubstr(">workers</text>"));
  }
  chart.legend = Legend::None;
  EXPECT_THAT(svg_of({chart}), Not(HasSubstr(">series</text>")));
}

TEST(Charts, show_lines_that_lie_on_each_other) {
  const std::vector<Point> points = {{0, 1}, {1, 2}, {2, kNan}};
  const std::string svg =
      svg_of({{.series = {{.name = "first", .points = points},
                          {.name = "other", .points = {{0, 1}, {1, 3}}},
                          {.name = "last", .points = {{0, 1}, {1, 2 + 1e-7}, {2, kNan}}}}}});
  EXPECT_EQ(count_of("style=\"stroke-width:4.5\"", svg), 1U);
  EXPECT_LT(svg.find("style=\"stroke-width:4.5\""), svg.find("<title>first</title>"));
}

TEST(Charts, leave_a_gap_at_what_cannot_be_shown_and_mark_it) {
  const std::string svg = draw({{0, 1}, {1, 2}, {2, kNan}, {3, 2}, {4, 1}, {5, kInfinity}, {6, -kInfinity}});
  EXPECT_EQ(curves_in(svg).size(), 2U);
  for (const char* mark : {"run: nan at 2<", "run: inf at 5<", "run: -inf at 6<"})
    EXPECT_THAT(svg, HasSubstr(mark));
  EXPECT_THAT(draw({{0, kNan}}), HasSubstr("run: nan at 0<"));
  const std::string logarithmic = draw({{0, 1}, {1, 2}, {2, 0}, {3, 2}, {4, 1}}, {.logarithmic = true});
  EXPECT_EQ(curves_in(logarithmic).size(), 2U);
  EXPECT_THAT(logarithmic, HasSubstr("run: 0 at 2<"));
  for (const std::vector<Point>& points : {std::vector<Point>{{0, 1e308}, {1, -1e308}},
                                           {{0, 1.7e308}, {1, 1.3e308}},
                                           {{0, 1.7e308}},
                                           {{0, 5e-324}, {1, 0}},
                                           {{kNan, 1}, {1, 1}}}) {
    const std::string drawn = std::regex_replace(draw(points), std::regex("<title>[^<]*</title>"), "");
    EXPECT_THAT(drawn, Not(HasSubstr("nan")));
    EXPECT_THAT(drawn, Not(HasSubstr("inf")));
  }
}

TEST(Charts, of_many_points_keep_the_extremes_and_stay_small) {
  std::vector<Point> points;
  for (int i = 0; i < 200000; ++i) points.push_back({static_cast<double>(i), std::sin(i * 0.001)});
  points[123456].y = 50;  // one spike
  const std::string svg = draw(points);
  EXPECT_LT(svg.size(), 40000U);
  // The spike is at the upper end of an axis from -10 or so to 50, which no other point comes near to.
  const std::string curve = curves_in(svg).at(0);
  const std::string spike = curves_in(draw({{0, -1}, {123456, 50}, {199999, -1}})).at(0);
  const std::string top = spike.substr(spike.find('L'), spike.rfind('L') - spike.find('L'));
  EXPECT_THAT(curve, HasSubstr(top));
}

TEST(Charts, escape_text_and_shorten_what_is_too_long) {
  EXPECT_EQ(escaped("a<b & \"c\">"), "a&lt;b &amp; &quot;c&quot;&gt;");
  EXPECT_EQ(escaped(std::string("\0\x1B", 2)), "\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(escaped("n\xC3\xA4me\xFF\xEF\xBF\xBF"), "n\xC3\xA4me\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(fitted("begin-end", 1000), "begin-end");
  EXPECT_EQ(fitted("begin<<<<<<<<<<<<>end", 5 * width_of("x")),
            "be\xE2\x80\xA6"
            "d");
  EXPECT_EQ(fitted("\xE5\xAD\x97\xE5\xAD\x97\xE5\xAD\x97", 5 * width_of("x")), "\xE5\xAD\x97\xE2\x80\xA6");
  const std::string svg = svg_of({{.title = "<&\">", .series = {{.name = "</svg>", .points = {{0, 0}}}}}},
                                 {"<script>", std::string(5000, 'n')});
  EXPECT_THAT(svg, Not(HasSubstr("<script>")));
  EXPECT_EQ(svg.find("</svg>"), svg.rfind("</svg>"));
  EXPECT_LT(svg.size(), 5000U);
  EXPECT_THAT(page_of(svg, "</title>"), Not(HasSubstr("<title></title>")));
}

// WCAG 2's contrast, which should be 3 or more for lines.
double luminance(const std::string& colour) {
  const auto linear = [&](size_t at) {
    const double part = std::stoi(colour.substr(at, 2), nullptr, 16) / 255.0;
    return part <= 0.04045 ? part / 12.92 : std::pow((part + 0.055) / 1.055, 2.4);
  };
  return 0.2126 * linear(1) + 0.7152 * linear(3) + 0.0722 * linear(5);
}

TEST(Charts, can_be_read_on_light_and_dark_backgrounds) {
  constexpr size_t kRuns = 64;
  const std::string svg = svg_of({}, std::vector<std::string>(kRuns, "run"));
  const std::regex colour("stroke=\"(#[0-9a-f]{6})\"");
  std::set<std::string> found;
  for (std::sregex_iterator match(svg.begin(), svg.end(), colour), end; match != end; ++match) {
    const std::string text = (*match)[1];
    found.insert(text);
    for (const char* background : {"#ffffff", "#0d1117", "#000000"}) {
      const double one = luminance(text) + 0.05;
      const double other = luminance(background) + 0.05;
      EXPECT_GE(std::max(one, other) / std::min(one, other), 3) << text << " on " << background;
    }
  }
  EXPECT_EQ(found.size(), kRuns) << "two runs have the same colour";
  for (const char* loaded : {"href", "url(", "src=", "@import"})
    EXPECT_THAT(page_of(svg, "runs"), Not(HasSubstr(loaded)));
}

}  // namespace
}  // namespace tutti::chart::chart_test
