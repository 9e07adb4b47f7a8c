#include <cmath>
#include <filesystem>
#include <limits>
#include <regex>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tools/plot/plotted_run.h"
#include "tools/plot/svg.h"
#include "tutti/base/file.h"
#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/store/event_file.h"
#include "tutti/store/report.h"

namespace tutti::plot {
namespace {

using store::EventWriter;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// --- Reading

TEST(PlottedRun, has_the_scalars_of_a_log_directory) {
  const TestFolder folder;
  {
    EventWriter writer(folder.path());
    for (const int64_t step : {1, 2, 300}) writer.scalar("loss", step, 1.0 / static_cast<double>(step));
    writer.scalar("a \"quoted\" näme", 7, kInfinity);
    writer.text("note", 1, "no number");
    writer.histogram("weights", 1, torch::ones({4}));
  }
  const PlottedRun run = read_run(folder.path() + "/");
  EXPECT_EQ(run.name, std::filesystem::path(folder.path()).filename());
  EXPECT_THAT(run.scalars.at("loss"),
              ElementsAre(Point{1, 1}, Point{2, 0.5}, Point{300, static_cast<double>(1.0F / 300)}));
  EXPECT_THAT(run.scalars.at("a \"quoted\" näme"), ElementsAre(Point{7, kInfinity}));
  EXPECT_EQ(run.scalars.size(), 2U);
}

TEST(PlottedRun, that_was_resumed_has_the_later_value_of_each_step) {
  const TestFolder folder;
  {
    EventWriter writer(folder.path());
    for (const int64_t step : {1, 2, 3, 4}) writer.scalar("loss", step, 1);
  }
  {
    EventWriter writer(folder.path(), {.resumed_after = 2});
    writer.scalar("loss", 3, 2);
    writer.scalar("loss", 3, 4);
  }
  EXPECT_THAT(read_run(folder.path()).scalars.at("loss"), ElementsAre(Point{1, 1}, Point{2, 1}, Point{3, 4}));
}

TEST(PlottedRun, ends_at_a_record_that_is_being_written_and_refuses_a_damaged_one) {
  const TestFolder folder;
  std::string path;
  {
    EventWriter writer(folder.path());
    path = writer.path();
    writer.scalar("loss", 1, 1);
    writer.scalar("loss", 2, 1);
  }
  const std::string bytes = read_file(path);
  for (size_t size = 0; size < bytes.size(); ++size) {
    PlottedRun run;
    add_events(bytes.substr(0, size), "events", run);
    EXPECT_LT(run.scalars["loss"].size(), 2U) << size;
  }
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string damaged = bytes;
    damaged[at] ^= 4;
    PlottedRun run;
    expect_error(ErrorKind::DataLoss, HasSubstr("events is damaged"),
                 [&] { add_events(damaged, "events", run); });
  }
  PlottedRun run;
  expect_error(ErrorKind::DataLoss, HasSubstr("cannot be decoded"),
               [&] { add_events(store::frame_record("\xFF\xFF"), "events", run); });
}

TEST(PlottedRun, takes_a_report_for_what_event_files_do_not_have) {
  const TestFolder folder;
  const std::string path = folder.path() + "/report.json";
  store::Report report;
  report.steps = 50;
  report.loss = kNan;
  report.metrics = {{"accuracy", 0.5}, {"auc", {}}};
  report.staleness = {{0, 3}, {2, 1}};
  store::write_report(path, report);
  const PlottedRun alone = read_run(path);
  EXPECT_EQ(alone.name, "report.json");
  EXPECT_THAT(alone.scalars.at("test_accuracy"), ElementsAre(Point{50, 0.5}));
  EXPECT_FALSE(alone.scalars.contains("loss"));
  EXPECT_FALSE(alone.scalars.contains("test_auc"));
  EXPECT_THAT(alone.staleness,
              ElementsAre(std::pair<const int64_t, int64_t>(0, 3), std::pair<const int64_t, int64_t>(2, 1)));
  EventWriter(folder.path()).scalar("loss", 1, 1);
  const PlottedRun both = read_run(folder.path());
  EXPECT_EQ(both.scalars.size(), 1U);
  EXPECT_EQ(both.staleness, alone.staleness);
}

TEST(PlottedRun, refuses_what_no_run_has_written) {
  const TestFolder folder;
  expect_error(ErrorKind::InvalidArgument, HasSubstr("does not exist"),
               [&] { read_run(folder.path() + "/none"); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("has no event files and no report.json"),
               [&] { read_run(folder.path()); });
  for (const char* text : {"", "[]", "{}", "{\"steps\": 1}"}) {
    replace_file(folder.path() + "/other", text);
    EXPECT_THROW(read_run(folder.path() + "/other"), Error) << text;
  }
}

// --- Drawing

// Returns the numbers of all paths and circles that are curves, in the order of the text.
std::vector<std::string> curves_in(const std::string& svg) {
  const std::regex curve(
      R"re(class="curve" stroke="#[0-9a-f]+"(?: stroke-dasharray="[^"]*")? d="(M[^"l]*L[^"]*)")re");
  std::vector<std::string> found;
  for (std::sregex_iterator match(svg.begin(), svg.end(), curve), end; match != end; ++match)
    found.push_back((*match)[1]);
  return found;
}

std::string draw_one(std::vector<Point> points) {
  return draw(
      {{.title = "loss", .x_label = "step", .curves = {{.name = "run", .points = std::move(points)}}}},
      {{"run", 0}});
}

TEST(Axes, have_round_numbers_around_all_values) {
  for (const auto& [least, greatest] : std::vector<std::pair<double, double>>{{0, 1},
                                                                              {0.13, 0.94},
                                                                              {-3, 1000},
                                                                              {5, 5},
                                                                              {0, 0},
                                                                              {-1e308, 1e308},
                                                                              {1e-300, 2e-300},
                                                                              {1e9, 1e9 + 1},
                                                                              {0, 5e-324}}) {
    const Axis axis = axis_of(least, greatest, 5);
    EXPECT_LE(axis.begin, least);
    EXPECT_GE(axis.end, greatest);
    EXPECT_GT(axis.step, 0);
    EXPECT_LE(axis.end / axis.step - axis.begin / axis.step, 8) << least << " " << greatest;
    EXPECT_TRUE(std::isfinite(axis.begin) && std::isfinite(axis.end));
  }
  EXPECT_EQ(axis_of(0.13, 0.94, 5).step, 0.2);
}

TEST(Drawings, have_a_line_per_curve_and_a_dot_for_a_single_point) {
  EXPECT_EQ(curves_in(draw_one({{1, 1}, {2, 2}})).size(), 1U);
  EXPECT_THAT(draw_one({{1, 1}}), HasSubstr("<circle"));
  const std::string empty = draw_one({});
  EXPECT_THAT(curves_in(empty), IsEmpty());
  EXPECT_THAT(empty, Not(HasSubstr("nan")));
  EXPECT_THAT(draw({}, {}), HasSubstr("</svg>"));
}

// The higher value is higher on the page, and the later one further right.
TEST(Drawings, put_values_where_they_belong) {
  const std::string curve = curves_in(draw_one({{0, 0}, {10, 10}})).at(0);
  double x0 = 0;
  double y0 = 0;
  double x1 = 0;
  double y1 = 0;
  ASSERT_EQ(std::sscanf(curve.c_str(), "M%lf %lfL%lf %lf", &x0, &y0, &x1, &y1), 4);
  EXPECT_LT(x0, x1);
  EXPECT_GT(y0, y1);
}

TEST(Drawings, leave_a_gap_at_what_is_not_finite_and_mark_it) {
  const std::string svg =
      draw_one({{0, 1}, {1, 2}, {2, kNan}, {3, 2}, {4, 1}, {5, kInfinity}, {6, -kInfinity}});
  EXPECT_EQ(curves_in(svg).size(), 2U);
  for (const char* step : {"2", "5", "6"})
    EXPECT_THAT(svg, HasSubstr(fmt::format("run: not a finite number at {}<", step)));
  EXPECT_THAT(curves_in(svg), Not(::testing::Contains(HasSubstr("n"))));
  EXPECT_THAT(draw_one({{0, kNan}}), HasSubstr("not a finite number at 0"));
  for (const std::vector<Point>& points :
       {std::vector<Point>{{0, 1e308}, {1, -1e308}}, {{0, 5e-324}, {1, 0}}, {{kNan, 1}, {1, 1}}})
    EXPECT_THAT(curves_in(draw_one(points)), Not(::testing::Contains(HasSubstr("n"))));
}

TEST(Drawings, of_many_points_keep_the_extremes_and_stay_small) {
  std::vector<Point> points;
  for (int i = 0; i < 200000; ++i) points.push_back({static_cast<double>(i), std::sin(i * 0.001)});
  points[123456].y = 50;  // one spike
  const std::string svg = draw_one(points);
  EXPECT_LT(svg.size(), 40000U);
  // The spike is at the upper end of an axis from -10 or so to 50, which no other point comes near to.
  const std::string curve = curves_in(svg).at(0);
  const std::string spike = curves_in(draw_one({{0, -1}, {123456, 50}, {199999, -1}})).at(0);
  const std::string top = spike.substr(spike.find('L'), spike.rfind('L') - spike.find('L'));
  EXPECT_THAT(curve, HasSubstr(top));
}

TEST(Drawings, escape_names) {
  EXPECT_EQ(escaped("a<b & \"c\">"), "a&lt;b &amp; &quot;c&quot;&gt;");
  EXPECT_EQ(escaped(std::string("\0\x1B", 2)), "\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(escaped("n\xC3\xA4me\xFF"), "n\xC3\xA4me\xEF\xBF\xBD");
  const std::string svg =
      draw({{.title = "<&\">", .x_label = "", .curves = {{.name = "</svg>", .points = {{0, 0}}}}}},
           {{"<script>", 0}});
  EXPECT_THAT(svg, Not(HasSubstr("<script>")));
  EXPECT_EQ(svg.find("</svg>"), svg.rfind("</svg>"));
  EXPECT_THAT(page(svg, "</title>"), Not(HasSubstr("<title></title>")));
}

// WCAG 2's contrast, which should be 3 or more for lines.
double luminance(const std::string& colour) {
  const auto linear = [&](size_t at) {
    const double part = std::stoi(colour.substr(at, 2), nullptr, 16) / 255.0;
    return part <= 0.04045 ? part / 12.92 : std::pow((part + 0.055) / 1.055, 2.4);
  };
  return 0.2126 * linear(1) + 0.7152 * linear(3) + 0.0722 * linear(5);
}

TEST(Drawings, can_be_read_on_light_and_dark_backgrounds) {
  std::vector<LegendEntry> legend;
  for (size_t i = 0; i < 20; ++i) legend.push_back({"run", i});
  const std::string svg = draw({}, legend);
  const std::regex colour("#[0-9a-f]{6}");
  int count = 0;
  for (std::sregex_iterator match(svg.begin(), svg.end(), colour), end; match != end; ++match, ++count) {
    for (const char* background : {"#ffffff", "#0d1117", "#000000"}) {
      const double one = luminance(match->str()) + 0.05;
      const double other = luminance(background) + 0.05;
      EXPECT_GE(std::max(one, other) / std::min(one, other), 3) << match->str() << " on " << background;
    }
  }
  EXPECT_GE(count, 20);
  for (const char* loaded : {"href", "url(", "src=", "@import"})
    EXPECT_THAT(page(svg, "runs"), Not(HasSubstr(loaded)));
}

}  // namespace
}  // namespace tutti::plot
