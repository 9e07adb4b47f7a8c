#include "tools/sweep/results.h"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "tutti/base/file.h"
#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"

namespace tutti::results_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const SweepGoal kLeastLoss;

Stop stop_at(int64_t steps, std::optional<double> loss, bool complete = false) {
  return {
      .stop_after = complete ? 0 : steps, .steps = steps, .complete = complete, .values = {{"loss", loss}}};
}

SweepResults four_runs() {
  SweepResults results{.command = {"prog"}, .settings = {"rate"}};
  results.runs = {
      {.name = "run-1", .values = {"1"}, .stops = {stop_at(5, 0.1)}},
      {.name = "run-2", .values = {"a,\"b"}, .stops = {stop_at(5, 0.2), stop_at(10, 0.9, true)}},
      {.name = "run-3", .values = {"3"}, .failure = "was killed"},
      {.name = "run-4", .values = {"4"}, .stops = {stop_at(5, std::nullopt), stop_at(10, 0.5, true)}}};
  return results;
}

TEST(SweepResults, rank_complete_runs_first_then_by_their_values) {
  const SweepResults results = four_runs();
  std::vector<std::string> names;
  for (const SweepRun* run : ranked(results, kLeastLoss)) names.push_back(run->name);
  EXPECT_THAT(names, ElementsAre("run-4", "run-2", "run-1", "run-3"));
  EXPECT_EQ(ranked(results, {"loss", true}).front()->name, "run-2");
  EXPECT_EQ(ranked(results, {"unknown", true}).size(), 4U);
}

TEST(SweepResults, a_run_without_a_value_is_worse_than_any_other) {
  for (const bool maximum : {false, true}) {
    const SweepGoal goal{"loss", maximum};
    EXPECT_TRUE(is_better(goal, stop_at(1, 1e30), stop_at(1, std::nullopt)));
    EXPECT_TRUE(is_better(goal, stop_at(1, -1e30), stop_at(1, std::nullopt)));
    EXPECT_FALSE(is_better(goal, stop_at(1, std::nullopt), stop_at(1, 1)));
    EXPECT_FALSE(is_better(goal, stop_at(1, std::nullopt), stop_at(1, std::nullopt)));
  }
}

TEST(SweepResults, tell_the_state_at_the_end_of_each_stage) {
  const SweepResults results = four_runs();
  EXPECT_EQ(results.runs[0].at({5, 4})->steps, 5);
  EXPECT_EQ(results.runs[0].at({10, 4}), nullptr);
  EXPECT_EQ(results.runs[0].at({0, 4}), nullptr);
  EXPECT_EQ(results.runs[1].at({5, 4})->steps, 5);
  EXPECT_EQ(results.runs[1].at({7, 4})->steps, 10);
  EXPECT_EQ(results.runs[1].at({0, 4})->steps, 10);
  EXPECT_EQ(results.runs[1].at({99, 4})->steps, 10) << "a complete run has reached every stage";
  EXPECT_EQ(results.runs[2].at({5, 4}), nullptr);
}

TEST(SweepResults, are_the_same_after_writing_and_reading) {
  const TestFolder folder;
  const std::string path = folder / "sweep.json";
  const std::string text = to_json(four_runs(), kLeastLoss).dump();
  replace_file(path, text);
  EXPECT_EQ(to_json(read_results(path), kLeastLoss).dump(), text);
  for (const std::string damaged :
       {"", "{}", "[]", "{\"command\": 3}", "{\"command\":[],\"settings\":[],\"runs\":[{}]}",
        "{\"command\":[],\"settings\":[],\"runs\":3}"}) {
    replace_file(path, damaged);
    expect_error(ErrorKind::DataLoss, HasSubstr("sweep.json"), [&] { read_results(path); });
  }
}

TEST(SweepResults, show_runs_that_were_interrupted_with_what_is_known_of_them) {
  SweepResults results{.command = {"prog"}, .settings = {"rate"}};
  results.runs = {{.name = "run-1", .values = {"1"}},
                  {.name = "run-2", .values = {"2"}, .process = RunProcess::Running},
                  {.name = "run-3",
                   .values = {"3"},
                   .stops = {stop_at(5, 0.7)},
                   .process = RunProcess::Interrupted,
                   .partial = stop_at(8, 0.6)}};
  EXPECT_EQ(to_json(results, kLeastLoss).at("runs")[1].at("state"), "running");
  const TestFolder folder;
  replace_file(folder / "sweep.json", to_json(results, kLeastLoss).dump());
  EXPECT_EQ(table_of(read_results(folder / "sweep.json"), kLeastLoss),
            "run    rate  steps  loss  seconds  state\n"
            "run-3     3      8   0.6      0.0  interrupted\n"
            "run-1     1                   0.0  not run\n"
            "run-2     2                   0.0  interrupted\n");
}

TEST(SweepResults, are_shown_as_a_table_and_as_csv) {
  EXPECT_EQ(table_of(four_runs(), kLeastLoss),
            "run    rate  steps  loss  seconds  state\n"
            "run-4     4     10   0.5      0.0  finished\n"
            "run-2  a,\"b     10   0.9      0.0  finished\n"
            "run-1     1      5   0.1      0.0  stopped\n"
            "run-3     3                   0.0  failed\n");
  EXPECT_EQ(csv_of(four_runs(), kLeastLoss),
            "run,rate,state,steps,seconds,restarts,weights_sha256,loss\n"
            "run-4,4,finished,10,0.000,0,,0.5\n"
            "run-2,\"a,\"\"b\",finished,10,0.000,0,,0.90000000000000002\n"
            "run-1,1,stopped,5,0.000,0,,0.10000000000000001\n"
            "run-3,3,failed,0,0.000,0,,\n");
}

TEST(SweepResults, read_the_report_of_a_program) {
  const TestFolder folder;
  const std::string path = folder / "report.json";
  replace_file(path, R"({"steps": 7, "complete": false, "loss": null, "metrics": {"auc": 0.5, "ndcg": null},
                        "weights_sha256": "ab", "world": 2})");
  const Stop stop = read_report(path, 7);
  EXPECT_EQ(stop.steps, 7);
  EXPECT_FALSE(stop.complete);
  EXPECT_EQ(stop.values.at("auc"), 0.5);
  EXPECT_EQ(stop.values.at("ndcg"), std::nullopt);
  EXPECT_EQ(stop.values.at("loss"), std::nullopt);
  EXPECT_FALSE(stop.values.contains("world"));
  replace_file(path, R"({"steps": 7})");
  expect_error(ErrorKind::DataLoss, HasSubstr("complete"), [&] { read_report(path, 7); });
}

}  // namespace
}  // namespace tutti::results_test
