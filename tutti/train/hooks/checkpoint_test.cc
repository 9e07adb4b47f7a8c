#include "tutti/store/checkpoint.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/file.h"
#include "tutti/base/test_folder.h"
#include "tutti/train/hooks.h"
#include "tutti/train/run_state.h"
#include "tutti/train/test_trainer.h"

namespace tutti::hooks::checkpoint_test {
namespace {

constexpr double kDay = 86400;

// The share of the time that is lost, to checkpoints and, half an interval for each failure, to steps made
// again.
double lost(double interval, double cost, double between_failures) {
  return cost / interval + interval / 2 / between_failures;
}

TEST(CheckpointInterval, loses_the_least_time) {
  for (const double cost : {0.01, 0.1, 1.0, 10.0}) {
    for (const double between : {0.2 * kDay, kDay, 30 * kDay}) {
      const double chosen = lost(checkpoint_interval(cost, between), cost, between);
      for (double interval = 1; interval < 10 * kDay; interval *= 1.01)
        EXPECT_GE(lost(interval, cost, between), chosen * (1 - 1e-12)) << cost << " " << between;
    }
  }
}

TEST(CheckpointInterval, keeps_the_training_waiting_for_less_than_3_5_percent) {
  for (double cost = 1e-9; cost < kDay; cost *= 1.3) {
    for (double between = 1; between < 100 * kDay; between *= 3) {
      const double interval = checkpoint_interval(cost, between);
      EXPECT_GE(interval, 1);
      EXPECT_LT(cost / (interval + cost), 0.035) << cost << " " << between;
    }
  }
}

TEST(CheckpointInterval, is_shorter_after_each_failure_and_grows_without) {
  EXPECT_EQ(expected_between_failures(0, 0), kDay);
  // A run that fails 24 times a day for ten days is expected to go on like that.
  EXPECT_NEAR(expected_between_failures(240, 10 * kDay), kDay / 24, kDay / 24 * 0.1);
  for (int64_t failures = 0; failures < 50; ++failures) {
    const double before = expected_between_failures(failures, kDay);
    EXPECT_LT(expected_between_failures(failures + 1, kDay), before);
    EXPECT_LT(checkpoint_interval(1, expected_between_failures(failures + 1, kDay)),
              checkpoint_interval(1, before));
    EXPECT_GT(expected_between_failures(failures, 2 * kDay), before);
  }
}

RunConfig run_in(const std::string& folder, const std::string& every = "auto") {
  RunConfig config = test_flags();
  config.checkpoints.logdir = folder;
  config.checkpoints.every = every;
  config.output.report = folder + ".json";
  return config;
}

// The report's part on checkpoints.
nlohmann::json checkpoints_of(const std::string& folder) {
  return nlohmann::json::parse(read_file(folder + ".json")).value("checkpoints", nlohmann::json::object());
}

TEST(AutomaticCheckpoints, are_saved_after_the_first_step_and_as_its_cost_suggests) {
  const TestFolder folder;
  const std::string expected = train(run_in(folder / "fixed", "3"), 8);
  EXPECT_TRUE(checkpoints_of(folder / "fixed").empty());
  EXPECT_EQ(train(run_in(folder / "run"), 8), expected);
  EXPECT_EQ(store::CheckpointDir(folder / "run").steps().front(), 1);
  const nlohmann::json chosen = checkpoints_of(folder / "run");
  const auto number = [&](const char* name) { return chosen.at(name).get<double>(); };
  EXPECT_GT(number("cost"), 0);
  EXPECT_GT(number("overhead"), 0);
  EXPECT_NEAR(number("between_failures"), kDay, 600);
  EXPECT_EQ(number("failures"), 0);
  EXPECT_DOUBLE_EQ(
      number("interval"),
      std::max({1.0, std::sqrt(2 * number("cost") * number("between_failures")), number("cost") / 0.035}));
}

TEST(AutomaticCheckpoints, remember_the_failures_of_earlier_starts) {
  const TestFolder folder;
  const std::string run = folder / "run";
  const std::string undisturbed = train(run_in(folder / "undisturbed"), 12);
  train(run_in(run), 12, 3);
  EXPECT_EQ(read_run_state(run)->failures, 0);
  train(run_in(run, "0"), 12, 4);  // fails before it has saved anything
  EXPECT_EQ(read_run_state(run)->failures, 1);
  EXPECT_EQ(train(run_in(run), 12), undisturbed);
  EXPECT_EQ(checkpoints_of(run).at("failures"), 2);
  EXPECT_NEAR(checkpoints_of(run).at("between_failures").get<double>(), kDay / 3, 600);
  train(run_in(run), 14);
  EXPECT_EQ(checkpoints_of(run).at("failures"), 2) << "a run that goes on after its end has not failed";
  train(run_in(run), 20, 16);
  RunConfig anew = run_in(run);
  anew.checkpoints.resume = "never";
  train(anew, 2);
  EXPECT_EQ(checkpoints_of(run).at("failures"), 0) << "it was another run that has failed";
}

TEST(AutomaticCheckpoints, count_the_time_in_which_the_run_was_trained) {
  const TestFolder folder;
  const std::string run = folder / "run";
  train(run_in(run), 4, 3);
  // As if it had trained for a day, and nobody had started it again for another one.
  RunState state = read_run_state(run).value();
  state.since -= 2 * kDay;
  write_run_state(run, state);
  const std::string file = run + "/" + kRunStateName;
  std::filesystem::last_write_time(file, std::filesystem::last_write_time(file) - std::chrono::hours(24));
  train(run_in(run), 4);
  EXPECT_NEAR(read_run_state(run)->trained(), kDay, 600);
  EXPECT_NEAR(checkpoints_of(run).at("between_failures").get<double>(), kDay, 600)
      << "one in this day, and one in the day that is believed before";
}

}  // namespace
}  // namespace tutti::hooks::checkpoint_test
