#include "tools/sweep/plan.h"

#include <cmath>
#include <set>

#include <gmock/gmock.h>

#include "tutti/base/test_errors.h"
#include "tutti/base/text.h"

namespace tutti::plan_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<SweepSetting> settings_of(const std::vector<std::string>& texts) {
  std::vector<SweepSetting> settings;
  for (const std::string& text : texts) settings.push_back(parse_setting(text));
  return settings;
}

TEST(Setting, is_never_the_secret) {
  expect_error(ErrorKind::InvalidArgument, HasSubstr("TUTTI_SECRET"), [] { parse_setting("secret=a,b"); });
  for (const char* word : {"--secret", "--secret=x"})
    expect_error(ErrorKind::InvalidArgument, HasSubstr("TUTTI_SECRET"), [&] {
      require_not_given({}, {"train", word});
    });
}

TEST(SweepSettings, have_a_name_and_values) {
  EXPECT_EQ(parse_setting("rate=1e-4,1e-3").name, "rate");
  EXPECT_THAT(parse_setting("--rate=1e-4,1e-3").values, ElementsAre("1e-4", "1e-3"));
  EXPECT_EQ(parse_setting("--rate=1").name, "rate");
  EXPECT_THAT(parse_setting("data=a=b,../c..d").values, ElementsAre("a=b", "../c..d"));
}

TEST(SweepSettings, that_are_wrong_are_named) {
  for (const std::string text :
       {"", "rate", "=1", "--=1", "rate=", "rate=1,", "rate=1,,2", "rate=1,2,1", "rate=2..1", "rate=0..1",
        "rate=1..1", "rate=-1..1", "rate=1..x", "rate=1..inf", "logdir=a,b", "stop_after=1,2", "report=a"})
    expect_error(ErrorKind::InvalidArgument, HasSubstr("tutti sweep: --set"), [&] { parse_setting(text); });
}

TEST(SweepGrid, has_all_combinations_in_order) {
  EXPECT_THAT(
      grid_of(settings_of({"rate=1,2", "batch=25,50"})),
      ElementsAre(RunValues{"1", "25"}, RunValues{"1", "50"}, RunValues{"2", "25"}, RunValues{"2", "50"}));
  EXPECT_THAT(grid_of(settings_of({"rate=1"})), ElementsAre(RunValues{"1"}));
}

TEST(SweepGrid, refuses_ranges_repeated_names_and_too_many_runs) {
  const auto refuses = [](const std::vector<std::string>& texts, const std::string& text) {
    expect_error(ErrorKind::InvalidArgument, HasSubstr(text), [&] { grid_of(settings_of(texts)); });
  };
  refuses({"rate=1..2"}, "--random");
  refuses({"my-rate=1", "my_rate=2"}, "twice");
  std::string many = "a=0";
  for (int i = 1; i <= 100; ++i) many += "," + std::to_string(i);
  std::string others = many;
  others[0] = 'b';
  refuses({many, others}, "more than 10000");
}

TEST(SweepDraw, draws_different_combinations_that_depend_on_the_seed_alone) {
  const auto settings = settings_of({"a=1,2,3,4", "b=1,2,3", "c=1..1000", "d=1e-6..1.0"});
  const auto runs = draw(settings, 50, 1);
  EXPECT_EQ(std::set<RunValues>(runs.begin(), runs.end()).size(), 50U);
  EXPECT_EQ(draw(settings, 50, 1), runs);
  EXPECT_NE(draw(settings, 50, 2), runs);
  const auto fewer = draw(settings, 10, 1);
  EXPECT_TRUE(std::equal(fewer.begin(), fewer.end(), runs.begin())) << "more runs begin with the same ones";
}

TEST(SweepDraw, draws_the_whole_grid_if_asked_to_but_no_more) {
  const auto settings = settings_of({"a=1,2,3,4", "b=5..7"});
  const auto runs = draw(settings, 12, 7);
  EXPECT_EQ(std::set<RunValues>(runs.begin(), runs.end()).size(), 12U);
  expect_error(ErrorKind::InvalidArgument, HasSubstr("--random 13"), [&] { draw(settings, 13, 7); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("--random 3"),
               [] { draw(settings_of({"a=1,2"}), 3, 1); });
}

// The 5 % and 95 % points of the share below the geometric mean, for 4000 draws, are 0.487 and 0.513.
TEST(SweepDraw, is_uniform_in_the_logarithm) {
  const auto runs = draw(settings_of({"a=1e-6..1e-2", "b=1..1000000"}), 4000, 3);
  double below = 0;
  double whole_below = 0;
  for (const RunValues& run : runs) {
    const double value = *parse_double(run[0]);
    EXPECT_GE(value, 1e-6);
    EXPECT_LE(value, 1e-2);
    const auto whole = parse_int(run[1]);
    ASSERT_TRUE(whole) << run[1];
    EXPECT_GE(*whole, 1);
    EXPECT_LE(*whole, 1'000'000);
    below += value < 1e-4 ? 1 : 0;
    whole_below += *whole < 1000 ? 1 : 0;
  }
  EXPECT_NEAR(below / 4000, 0.5, 0.03);
  EXPECT_NEAR(whole_below / 4000, std::log(999.5 / 0.5) / std::log(1'000'000.5 / 0.5), 0.03);
}

TEST(SweepCheck, covers_every_listed_value_and_the_ends_of_ranges) {
  const auto settings = settings_of({"a=1,2", "b=1,2,3"});
  EXPECT_THAT(runs_to_check(settings, grid_of(settings)), ElementsAre(0, 1, 2, 3));
  const auto drawn = settings_of({"c=1..90"});
  EXPECT_THAT(runs_to_check(drawn, {{"5"}, {"7"}, {"80"}, {"1"}, {"9"}}), ElementsAre(0, 2, 3));
  EXPECT_THAT(runs_to_check(drawn, {{"5"}}), ElementsAre(0));
}

TEST(SweepCheck, refuses_a_flag_that_is_also_in_the_arguments_of_the_program) {
  const auto refuses = [](const std::string& setting, const std::vector<std::string>& command,
                          const std::string& word) {
    expect_error(ErrorKind::InvalidArgument, HasSubstr(word), [&] {
      require_not_given(settings_of({"other=1", setting}), command);
    });
  };
  refuses("rate=1,2", {"program", "--rate", "3"}, "have --rate, but --set rate");
  refuses("rate=1,2", {"program", "--rate=3"}, "have --rate=3, but --set rate");
  refuses("log-level=a,b", {"program", "--log_level", "a"}, "have --log_level, but --set log-level");
  refuses("log_level=a,b", {"program", "--log-level=a"}, "have --log-level=a, but --set log_level");
  refuses("nan-guard=true,false", {"program", "--no-nan-guard"}, "have --no-nan-guard");
  refuses("no_nan_guard=true,false", {"program", "--nan-guard"}, "have --nan-guard");
  refuses("rate=1,2", {"tutti", "run", "-n", "2", "--", "program", "--rate", "3"}, "have --rate");
  // The sweep gives these flags to each run, with different values.
  refuses("rate=1,2", {"program", "--logdir", "here"}, "leave --logdir out");
  refuses("rate=1,2", {"program", "--stop_after=3"}, "leave --stop_after=3 out");
}

TEST(SweepCheck, accepts_flags_of_the_launcher_and_other_words) {
  require_not_given(settings_of({"restarts=1,2", "rate=1"}),
                    {"tutti", "run", "--restarts", "2", "--", "program", "--rates", "1", "rate", "-rate"});
}

TEST(SweepCheck, refuses_different_numbers_of_steps_for_halving) {
  for (const char* text : {"steps=100..200", "steps=100,200", "--steps=1,2"})
    expect_error(ErrorKind::InvalidArgument, HasSubstr("same number of steps"), [&] {
      require_same_steps(settings_of({"rate=1,2", text}));
    });
  require_same_steps(settings_of({"rate=1,2", "steps=100", "decay-steps=1,2"}));
}

TEST(SweepGoal, needs_a_direction_unless_it_is_a_loss) {
  EXPECT_FALSE(parse_goal("loss").maximum);
  EXPECT_FALSE(parse_goal("validation_loss").maximum);
  EXPECT_FALSE(parse_goal("rmse").maximum);
  EXPECT_TRUE(parse_goal("loss:max").maximum);
  EXPECT_EQ(parse_goal("accuracy:max").name, "accuracy");
  EXPECT_EQ(parse_goal("net:auc:min").name, "net:auc");
  for (const std::string text : {"", "accuracy", ":max", "loss:", "loss:most", "auc:MAX"})
    expect_error(ErrorKind::InvalidArgument, HasSubstr("--by"), [&] { parse_goal(text); });
}

TEST(Halving, doubles_the_steps_of_half_the_runs) {
  EXPECT_THAT(halving_stages(8, 800, 1),
              ElementsAre(Stage{100, 8}, Stage{200, 4}, Stage{400, 2}, Stage{0, 1}));
  EXPECT_THAT(halving_stages(5, 1000, 1),
              ElementsAre(Stage{125, 5}, Stage{250, 3}, Stage{500, 2}, Stage{0, 1}));
  EXPECT_THAT(halving_stages(2, 10, 1), ElementsAre(Stage{5, 2}, Stage{0, 1}));
}

TEST(Halving, stops_no_run_before_the_least_number_of_steps) {
  EXPECT_THAT(halving_stages(8, 800, 150), ElementsAre(Stage{200, 8}, Stage{400, 4}, Stage{0, 2}));
  EXPECT_THAT(halving_stages(8, 800, 100),
              ElementsAre(Stage{100, 8}, Stage{200, 4}, Stage{400, 2}, Stage{0, 1}));
  EXPECT_THAT(halving_stages(8, 800, 101), ElementsAre(Stage{200, 8}, Stage{400, 4}, Stage{0, 2}));
  EXPECT_THAT(halving_stages(8, 800, 400), ElementsAre(Stage{400, 8}, Stage{0, 4}));
  EXPECT_THAT(halving_stages(8, 800, 401), ElementsAre(Stage{0, 8}));
  EXPECT_THAT(halving_stages(100, 3, 1), ElementsAre(Stage{1, 100}, Stage{0, 50}));
  EXPECT_THAT(halving_stages(100, 1, 1), ElementsAre(Stage{0, 100}));
  EXPECT_THAT(halving_stages(1, 100, 1), ElementsAre(Stage{0, 1}));
}

}  // namespace
}  // namespace tutti::plan_test
