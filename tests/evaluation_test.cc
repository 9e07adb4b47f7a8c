// Tests evaluations during a training, and of its chief alone after it, in all ways of training, with
// processes.
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/evaluations.h"
#include "tutti/base/error.h"

namespace tutti::testing::evaluation_test {
namespace {

using ::testing::HasSubstr;

const Flags kEvery = {"--steps", "12", "--every", "5", "--at-start", "--at-end", "--batches", "4"};

struct Way {
  std::string name;
  Tasks tasks;
  Flags flags;
};

const Tasks kAlone = {{"worker", 1}};
const Tasks kTwo = {{"worker", 2}};
const Tasks kThree = {{"worker", 3}};
const Tasks kServers = {{"ps", 2}, {"worker", 2}};

const std::vector<Way> kWays = {
    {"two", kTwo, {}},
    {"three", kThree, {}},
    {"tcp", kThree, {"--comm", "tcp"}},
    {"in-graph", {{"master", 1}, {"worker", 2}}, {"--strategy", "in-graph"}},
    {"servers", kServers, {"--strategy", "ps-sync"}},
};

// Returns the words with which `tutti run` starts these tasks; it adds a master by itself.
Flags launcher_of(const Tasks& tasks) {
  Flags words;
  for (const auto& [job, count] : tasks) {
    if (job != "master") words = with(words, {job == "ps" ? "--ps" : "-n", std::to_string(count)});
  }
  return words;
}

TEST(Evaluations, have_the_bits_of_a_training_without_them_in_every_way) {
  const Ended without = ended(kAlone, {"--steps", "12", "--form", "none"});
  const Ended alone = ended(kAlone, kEvery);
  EXPECT_EQ(alone.hash, without.hash);
  EXPECT_EQ(steps_of(alone.rows), (std::vector<int64_t>{0, 5, 10, 12}));
  for (const Way& way : kWays) EXPECT_EQ(ended(way.tasks, with(kEvery, way.flags)), alone) << way.name;
}

TEST(Evaluations, by_a_function_have_the_same_values) {
  const Flags average = with(kEvery, {"--average", "0.9"});
  const Ended by_feed = ended(kAlone, average);
  const Flags flags = with(average, {"--form", "function"});
  EXPECT_EQ(ended(kAlone, flags), by_feed);
  for (const Way& way : kWays) EXPECT_EQ(ended(way.tasks, with(flags, way.flags)), by_feed) << way.name;
}

TEST(Evaluations, work_in_a_loop_at_any_number_of_workers) {
  const Flags flags = with(kEvery, {"--own-loop"});
  const Ended without = ended(kAlone, {"--steps", "12", "--form", "none", "--own-loop"});
  const Ended alone = ended(kAlone, flags);
  EXPECT_EQ(alone.hash, without.hash);
  for (const Tasks& workers : {kTwo, kThree}) EXPECT_EQ(ended(workers, flags), alone) << workers[0].second;
  EXPECT_EQ(ended(kTwo, with(flags, {"--form", "function"})), alone);
}

const std::vector<std::string> kKillAt = {"3", "7", "11"};

Ended killed_at(const std::string& step, const Way& way) {
  const TestFolder folder;
  return ended_under(with(launcher_of(way.tasks), {"--restarts", "1"}),
                     with(with(kEvery, way.flags),
                          {"--logdir", folder / "run", "--checkpoint-every", "2", "--kill-at", step}));
}

TEST(Evaluations, are_the_same_after_the_chief_was_killed) {
  const Ended alone = ended(kAlone, kEvery);
  for (size_t i = 0; i < kWays.size(); ++i) {
    const std::string& step = kKillAt[i % kKillAt.size()];
    EXPECT_EQ(killed_at(step, kWays[i]), alone) << kWays[i].name << " " << step;
  }
}

TEST(EvaluationsSoak, are_the_same_after_the_chief_was_killed_at_any_step) {
  const Ended alone = ended(kAlone, kEvery);
  for (const std::string& step : kKillAt) {
    for (const Way& way : kWays) EXPECT_EQ(killed_at(step, way), alone) << way.name << " " << step;
  }
}

TEST(Evaluations, stop_a_training_early_at_the_same_step_in_every_way) {
  const Flags flags = {"--steps", "200", "--every", "4", "--stop-early"};
  const Ended alone = ended(kAlone, flags);
  ASSERT_FALSE(alone.rows.empty());
  for (const Way& way : kWays) EXPECT_EQ(ended(way.tasks, with(flags, way.flags)), alone) << way.name;
}

TEST(Evaluations, of_asynchronous_steps_are_made_by_the_chief) {
  const Ended result = ended(kServers, with(kEvery, {"--strategy", "ps-async"}));
  EXPECT_FALSE(result.rows.empty());
}

TEST(Evaluations, of_sharded_tables_are_made_on_any_number_of_workers) {
  for (const Flags& kind : {Flags{"--net", "tables"}, Flags{"--net", "tables", "--dynamic"}}) {
    const Flags flags = with(kEvery, kind);
    const Ended without = ended(kAlone, with(kind, {"--steps", "12", "--form", "none"}));
    const Ended alone = ended(kAlone, flags);
    EXPECT_EQ(alone.hash, without.hash) << kind.back();
    EXPECT_EQ(steps_of(alone.rows), (std::vector<int64_t>{0, 5, 10, 12}));
    for (const Way& way : kWays) {
      if (way.name == "in-graph") continue;  // has no sharded tables
      EXPECT_EQ(ended(way.tasks, with(flags, way.flags)), alone) << way.name << " " << kind.back();
    }
  }
}

// --- By the chief alone, after the training

std::string at_the_end(const Tasks& tasks, const Flags& flags) {
  return line_with("at the end", output_of(tasks, with({"--steps", "12", "--form", "none"}, flags)));
}

TEST(Here, the_chief_evaluates_alone_after_the_training_in_every_way) {
  const std::string all = at_the_end(kAlone, {"--here", "all"});
  EXPECT_THAT(all, HasSubstr("accuracy"));
  EXPECT_EQ(at_the_end(kAlone, {"--here", "chief"}), all);
  for (const Way& way : kWays) {
    EXPECT_EQ(at_the_end(way.tasks, with(way.flags, {"--here", "chief"})), all) << way.name;
    EXPECT_EQ(at_the_end(way.tasks, with(way.flags, {"--here", "all"})), all) << way.name;
  }
  EXPECT_THAT(at_the_end({{"ps", 1}, {"worker", 2}}, {"--strategy", "ps-async", "--here", "chief"}),
              HasSubstr("accuracy"));
}

TEST(Here, the_chief_reads_the_rows_of_sharded_tables_on_its_host) {
  const Flags tables = {"--net", "tables"};
  const std::string all = at_the_end(kAlone, with(tables, {"--here", "all"}));
  EXPECT_THAT(all, HasSubstr("auc"));
  for (const Tasks& workers : {kAlone, kTwo, kThree})
    EXPECT_EQ(at_the_end(workers, with(tables, {"--here", "chief"})), all) << workers[0].second;
  // Parameter servers answer each worker.
  EXPECT_EQ(at_the_end(kServers, with(tables, {"--strategy", "ps-sync", "--here", "chief"})), all);
}

TEST(Here, the_chief_is_told_that_it_cannot_read_the_rows_of_other_workers) {
  Flags command = {program_path("tutti"), "run", "-n", "2", "--", evaluation_program()};
  command = with(command, {"--net", "tables", "--steps", "3", "--comm", "tcp", "--here", "chief"});
  const ProgramResult result = run_program(command);
  EXPECT_EQ(result.exit_code, exit_code(ErrorKind::InvalidArgument)) << result.err;
  EXPECT_THAT(result.err, HasSubstr("cannot read the rows of sharded embeddings that other workers have"));
}

TEST(Here, only_the_chief_writes_the_events_of_the_program) {
  const TestFolder folder;
  output_of(kThree, with(kEvery, {"--logdir", folder / "run", "--summary-dir", folder / "own"}));
  for (const char* name : {"run", "own"}) {
    int64_t files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder / name))
      files += entry.path().filename().string().starts_with("events.out.") ? 1 : 0;
    EXPECT_EQ(files, 1) << name;
  }
}

}  // namespace
}  // namespace tutti::testing::evaluation_test
