// Tests --timeline and `tutti timeline` as users run them: however the processes end, their spans are joined.
#include <algorithm>
#include <set>
#include <signal.h>

#include <gmock/gmock.h>

#include "tests/together.h"
#include "tutti/base/test_trace.h"

namespace tutti::testing::timeline_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

using Flags = std::vector<std::string>;

std::vector<std::string> traced(int workers, const TestFolder& folder, Flags flags) {
  for (const std::string& flag : {std::string("--lanes"), std::string("4"), std::string("--batch"),
                                  std::string("4"), std::string("--timeline"), folder / "t.json"})
    flags.push_back(flag);
  return training(workers, flags);
}

// Joins the files with the command.
ReadTrace joined(const TestFolder& folder) {
  const auto result =
      run_program({program_path("tutti"), "timeline", folder / "t.json", "--out", folder / "all.json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return read_trace(folder / "all.json");
}

std::set<std::string> categories(const ReadTrace& trace, int process) {
  std::set<std::string> found;
  for (const auto& [thread, spans] : trace.spans) {
    for (const auto& span : spans) {
      if (thread.first == process) found.insert(span.category);
    }
  }
  return found;
}

// Returns true for operations that no rank leaves before all ranks have entered.
bool holds_all(const std::string& name) {
  for (const char* kind : {"barrier", "sync", "all_reduce", "all_gather"}) {
    if (name.starts_with(kind)) return true;
  }
  return false;
}

void expect_one_clock(const ReadTrace& trace, int ranks) {
  std::set<std::string> names;
  for (const auto& [thread, spans] : trace.spans) {
    for (const auto& span : spans) {
      if (span.category == "operation" && holds_all(span.name)) names.insert(span.name);
    }
  }
  EXPECT_GE(names.size(), 2U);
  for (const std::string& name : names) {
    std::vector<std::vector<ReadTrace::Span>> all;
    for (int rank = 0; rank < ranks; ++rank) all.push_back(trace.spans_of(rank + 1, name));
    for (const auto& of_rank : all) ASSERT_EQ(of_rank.size(), all[0].size()) << name;
    for (size_t i = 0; i < all[0].size(); ++i) {
      for (const auto& one : all) {
        for (const auto& other : all) EXPECT_LE(one[i].begin, other[i].end) << name << ' ' << i;
      }
    }
  }
}

TEST(Timeline, shows_where_the_time_of_all_workers_goes) {
  for (const char* comm : {"shm", "tcp"}) {
    const TestFolder folder;
    const auto result =
        run_program(traced(2, folder, {"--comm", comm, "--steps", "20", "--logdir", folder / "run"}));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const ReadTrace trace = joined(folder);
    EXPECT_EQ(trace.json.at("otherData").at("complete"), true);
    ASSERT_EQ(trace.processes.size(), 2U);
    expect_nested(trace);
    expect_one_clock(trace, 2);
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_THAT(trace.processes.at(rank + 1), HasSubstr("worker/" + std::to_string(rank) + " on "));
      EXPECT_THAT(categories(trace, rank + 1),
                  IsSupersetOf({"step", "compute", "operation", "wait", "reduce", "read", "save"}));
      EXPECT_EQ(trace.spans_of(rank + 1, "step").size(), 20U);
      EXPECT_EQ(trace.spans_of(rank + 1, "backward").size(), 40U);
      EXPECT_EQ(trace.spans_of(rank + 1, "backward").back().step, 19);
      EXPECT_EQ(trace.spans_of(rank + 1, "update").size(), 20U);
    }
  }
}

// These workers are not connected to each other, but share a clock.
TEST(Timeline, of_workers_with_servers_is_joined_too) {
  const TestFolder folder;
  Flags flags = traced(2, folder, {"--steps", "10", "--strategy", "ps-sync"});
  flags.insert(std::find(flags.begin(), flags.end(), "--"), {std::string("--ps"), std::string("1")});
  const auto result = run_program(flags);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const ReadTrace trace = joined(folder);
  EXPECT_EQ(trace.json.at("otherData").at("complete"), true);
  EXPECT_EQ(trace.processes.size(), 2U);
  // No worker is a step ahead of the other, for which it waits.
  const auto one = trace.spans_of(1, "step");
  const auto other = trace.spans_of(2, "step");
  ASSERT_GE(one.size(), 10U);
  ASSERT_GE(other.size(), 10U);
  for (size_t step = 0; step + 1 < 10; ++step) {
    EXPECT_LT(one[step].begin, other[step + 1].end);
    EXPECT_LT(other[step].begin, one[step + 1].end);
  }
}

TEST(Timeline, does_not_change_a_bit) {
  const TestFolder folder;
  const Flags flags = {"--lanes", "4", "--batch", "4", "--steps", "10"};
  EXPECT_EQ(hash_of(traced(2, folder, {"--steps", "10"}), folder), hash_of(training(2, flags), folder));
}

TEST(Timeline, is_written_after_sigterm_too) {
  const TestFolder folder;
  RunningProgram run(traced(2, folder, {"--steps", "10000000"}));
  run.wait_for_output("under way");
  kill(run.pid(), SIGTERM);
  EXPECT_EQ(run.wait(), 128 + SIGTERM);
  const ReadTrace trace = joined(folder);
  EXPECT_EQ(trace.json.at("otherData").at("complete"), true);
  EXPECT_EQ(trace.spans_of(1, "step").size(), trace.spans_of(2, "step").size());
}

TEST(Timeline, is_written_after_an_error_too) {
  const TestFolder folder;
  const auto result = run_program(traced(2, folder, {"--steps", "100", "--fail-at", "30"}));
  EXPECT_NE(result.exit_code, 0);
  const ReadTrace trace = joined(folder);
  EXPECT_EQ(trace.json.at("otherData").at("complete"), false);
  EXPECT_EQ(trace.spans_of(2, "hooks").back().step, 30);  // one of them throws
  EXPECT_GE(trace.spans_of(1, "step").size(), 30U);
}

TEST(Timeline, a_path_that_cannot_be_written_is_an_error_at_once) {
  const TestFolder folder;
  folder.write("file", "");
  const auto result =
      run_program(training(2, {"--steps", "100000000", "--timeline", folder / "file/t.json"}));
  EXPECT_NE(result.exit_code, 0);  // that of the first task to end: all have the same cause
  EXPECT_THAT(result.err, HasSubstr("--timeline: writing " + (folder / "file/t.")));
}

}  // namespace
}  // namespace tutti::testing::timeline_test
