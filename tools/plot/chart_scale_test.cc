#include "tools/plot/chart_scale.h"

#include <cmath>
#include <limits>
#include <set>

#include <gmock/gmock.h>

namespace tutti::chart::chart_scale_test {
namespace {

using ::testing::ElementsAre;

constexpr double kMost = std::numeric_limits<double>::max();
constexpr double kLeast = std::numeric_limits<double>::denorm_min();

std::vector<std::string> texts_of(const Scale& scale) {
  std::vector<std::string> texts;
  for (const Scale::Tick& tick : scale.ticks()) texts.push_back(tick.text);
  return texts;
}

void expect_readable(const Scale& scale, double least, double most) {
  SCOPED_TRACE(std::to_string(least) + " to " + std::to_string(most));
  EXPECT_TRUE(std::isfinite(scale.least()) && std::isfinite(scale.most()));
  EXPECT_LT(scale.least(), scale.most());
  EXPECT_LE(scale.least(), least);
  EXPECT_GE(scale.most(), most);
  EXPECT_GE(scale.ticks().size(), 2U);
  EXPECT_LE(scale.ticks().size(), 9U);
  std::set<std::string> texts;
  for (const Scale::Tick& tick : scale.ticks()) {
    EXPECT_TRUE(tick.value >= scale.least() && tick.value <= scale.most()) << tick.value;
    texts.insert(tick.text);
  }
  EXPECT_EQ(texts.size(), scale.ticks().size()) << "two have the same text";
  for (const double value : {least, most}) {
    EXPECT_GE(scale.share(value), 0);
    EXPECT_LE(scale.share(value), 1);
  }
  EXPECT_LE(scale.share(least), scale.share(most));
}

TEST(Scale, has_round_numbers_around_all_values) {
  for (const auto& [least, most] : std::vector<std::pair<double, double>>{{0, 1},
                                                                          {0.13, 0.94},
                                                                          {-3, 1000},
                                                                          {5, 5},
                                                                          {0, 0},
                                                                          {-1e308, 1e308},
                                                                          {1.3e308, 1.7e308},
                                                                          {-kMost, kMost},
                                                                          {kMost, kMost},
                                                                          {-kMost, -kMost},
                                                                          {1e-300, 2e-300},
                                                                          {1e9, 1e9 + 1},
                                                                          {9.2e18, 9.2e18 + 1024},
                                                                          {0, kLeast}})
    expect_readable(Scale({}, {most, least}), least, most);
  EXPECT_THAT(texts_of(Scale({}, {0.13, 0.94})), ElementsAre("0", "0.2", "0.4", "0.6", "0.8", "1"));
  EXPECT_EQ(texts_of(Scale({}, {0, static_cast<double>(0.001F)})).back(), "0.001");
  EXPECT_THAT(texts_of(Scale({}, {-1, 1})), ElementsAre("-1", "-0.5", "0", "0.5", "1"));
}

TEST(Scale, that_is_logarithmic_has_powers_of_ten) {
  for (const auto& [least, most] : std::vector<std::pair<double, double>>{
           {1, 1000}, {5, 5}, {1, 1}, {1e-300, 1e300}, {1e-5, 2e-5}, {1e307, kMost}})
    expect_readable(Scale({.logarithmic = true}, {least, most}), least, std::min(most, 1e308));
  EXPECT_THAT(texts_of(Scale({.logarithmic = true}, {0.02, 3})), ElementsAre("0.01", "0.1", "1", "10"));
  const Scale given({.least = 1, .most = 1024, .logarithmic = true, .ticks = {1, 32, 1024}}, {7});
  EXPECT_DOUBLE_EQ(given.share(32), 0.5);
  EXPECT_THAT(texts_of(given), ElementsAre("1", "32", "1024"));
}

TEST(Scale, keeps_to_the_ends_that_are_given) {
  const Scale scale({.least = 1, .most = 3000}, {0, 9000});
  EXPECT_THAT(texts_of(scale), ElementsAre("1000", "2000", "3000"));
  EXPECT_EQ(scale.share(0), 0);
  EXPECT_EQ(scale.share(9000), 1);
  EXPECT_EQ(Scale({.least = 0}, {3, 17}).most(), 20);
  expect_readable(Scale({.least = 9.2e18, .most = 9.2e18 + 1024}, {}), 9.2e18, 9.2e18 + 1024);
}

TEST(Scale, leaves_out_what_it_cannot_show) {
  const double nan = std::nan("");
  const Scale linear({}, {nan, HUGE_VAL, 1, 2, -HUGE_VAL});
  EXPECT_FALSE(linear.can_show(nan) || linear.can_show(HUGE_VAL) || linear.can_show(-HUGE_VAL));
  EXPECT_TRUE(linear.can_show(-5));
  expect_readable(linear, 1, 2);
  const Scale logarithmic({.logarithmic = true}, {0, -1, 10, 100});
  EXPECT_FALSE(logarithmic.can_show(0) || logarithmic.can_show(-1));
  EXPECT_EQ(logarithmic.least(), 10);
  for (const bool of_powers : {false, true})
    expect_readable(Scale({.logarithmic = of_powers}, {nan, -HUGE_VAL}), 1, 1);
}

}  // namespace
}  // namespace tutti::chart::chart_scale_test
