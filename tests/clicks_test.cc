// Tests sharded embeddings with the example that predicts clicks, in processes.
#include <filesystem>
#include <set>
#include <utility>

#include <gtest/gtest.h>

#include "tests/together.h"

namespace tutti::testing::clicks_test {
namespace {

// Each table has 80,000 numbers, so it is sharded.
const Flags kFlags = {"--rows",    "5000", "--examples",  "20000",  "--tested", "1000",
                      "--batch",   "64",   "--lanes",     "4",      "--steps",  "12",
                      "--threads", "1",    "--log-level", "warning"};

struct Result {
  std::string hash;
  nlohmann::json metrics;
  int64_t steps = 0;
  bool operator==(const Result&) const = default;
};

Result result_of(int workers, const Flags& more = {}) {
  const TestFolder folder;
  Flags command = {program_path("tutti"), "run", "-n", std::to_string(workers), "--", program_path("clicks")};
  const nlohmann::json report = report_of(with(command, with(kFlags, more)), folder);
  return {report.value("weights_sha256", ""), report.value("metrics", nlohmann::json()),
          report.value("steps", int64_t{0})};
}

TEST(Clicks, have_the_same_weights_and_metrics_on_any_number_of_workers) {
  const Result alone = result_of(1);
  EXPECT_TRUE(alone.metrics.contains("auc"));
  for (const int workers : {2, 3, 4}) EXPECT_EQ(result_of(workers), alone) << workers;
  for (const int workers : {2, 3, 5}) EXPECT_EQ(result_of(workers, {"--comm", "tcp"}), alone) << workers;
}

// Lanes have 4, 8, 12 and 16 of 40 parts of the examples. An epoch ends with the lane that has the fewest, or
// with the one that has the most, while the others have none left.
TEST(Clicks, of_uneven_lanes_have_the_same_weights_and_metrics_on_any_number_of_workers) {
  const Flags uneven = {"--uneven", "--examples", "3000", "--steps", "0", "--evaluate-every", "2"};
  std::set<std::string> hashes;
  for (const auto& [mode, steps] : {std::pair("--drop-remainder", 4), std::pair("--no-drop-remainder", 19)}) {
    const Result alone = result_of(1, with(uneven, {mode}));
    EXPECT_EQ(alone.steps, steps) << mode;
    for (const int workers : {2, 3, 4})
      EXPECT_EQ(result_of(workers, with(uneven, {mode})), alone) << workers << mode;
    EXPECT_EQ(result_of(2, with(uneven, {mode, "--comm", "tcp"})), alone) << mode;
    hashes.insert(alone.hash);
  }
  EXPECT_EQ(hashes.size(), 2U);
}

void expect_to_continue(const std::vector<std::pair<int, int>>& numbers_of_workers) {
  const Result straight = result_of(1);
  for (const auto& [before, after] : numbers_of_workers) {
    const TestFolder folder;
    const Flags saving = {"--logdir", folder / "run", "--checkpoint-every", "5"};
    result_of(before, with(saving, {"--steps", "5"}));
    EXPECT_EQ(result_of(after, with(saving, after == 3 ? Flags{"--comm", "tcp"} : Flags())), straight)
        << before << " to " << after;
  }
}

TEST(Clicks, continue_on_another_number_of_workers) { expect_to_continue({{1, 3}, {4, 2}, {3, 1}}); }

TEST(ClicksSoak, continue_on_another_number_of_workers) {
  expect_to_continue({{1, 1}, {1, 2}, {4, 1}, {4, 3}, {3, 2}, {3, 3}});
}

TEST(Clicks, are_resumed_after_a_worker_was_killed) {
  const Result straight = result_of(1);
  const TestFolder folder;
  const Flags saving = {"--logdir", folder / "run", "--checkpoint-every", "3"};
  result_of(2, with(saving, {"--steps", "7"}));
  std::filesystem::remove_all(folder / "run/ckpt-7");  // the last one, as if they had been killed before it
  std::filesystem::remove(folder / "run/latest");
  EXPECT_EQ(result_of(4, saving), straight);
}

}  // namespace
}  // namespace tutti::testing::clicks_test
