#include "tools/trace_join.h"

#include <fmt/format.h>

#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/base/test_trace.h"

namespace tutti::trace_join_test {
namespace {

using testing::HasSubstr;

struct Task {
  int rank = 0;
  int world = 2;
  std::string clock = "one";
  double wall_ahead = 0;
  bool complete = true;
  double wall_begin = 1;
  double wall_end = 2;
};

// Writes a file with one span from 5 to 6 us.
void write(const std::string& path, const Task& task) {
  Timeline timeline;
  timeline.record(Activity::Step, "a \"ts\":1 step", "", 0, 5'000, 6'000);
  write_trace(path, timeline, {.number = task.rank, .name = fmt::format("worker/{}", task.rank)},
              {{"rank", task.rank},
               {"world", task.world},
               {"task", fmt::format("worker/{}", task.rank)},
               {"clock", task.clock},
               {"wall_ahead_us", task.wall_ahead},
               {"complete", task.complete},
               {"wall_begin_us", task.wall_begin},
               {"wall_end_us", task.wall_end}});
}

int64_t begin_of(const ReadTrace& trace, int rank) {
  return trace.spans_of(rank + 1, "a \"ts\":1 step").at(0).begin;
}

TEST(TraceJoin, finds_the_files_of_the_other_ranks) {
  const TestFolder folder;
  for (int rank = 0; rank < 3; ++rank) write(trace_path(folder / "t.json", rank), {.rank = rank, .world = 3});
  write(folder / "t.rank3.json", {.rank = 3, .world = 4});  // of an earlier run
  const JoinedTraces joined = join_traces({folder / "t.json"}, folder / "all.json");
  EXPECT_EQ(joined.files, 3);
  EXPECT_EQ(joined.world, 3);
  EXPECT_TRUE(joined.warnings.empty());
  const ReadTrace trace = read_trace(folder / "all.json");
  EXPECT_EQ(trace.processes, (std::map<int, std::string>{{1, "worker/0"}, {2, "worker/1"}, {3, "worker/2"}}));
  EXPECT_EQ(trace.json.at("otherData").at("complete"), true);
  EXPECT_EQ(trace.json.at("otherData").at("ranks").size(), 3U);
  EXPECT_EQ(begin_of(trace, 2), 5'000);
}

TEST(TraceJoin, moves_the_times_of_another_clock) {
  const TestFolder folder;
  write(folder / "a.json", {.rank = 0, .wall_ahead = 1e15});
  write(folder / "b.json", {.rank = 1, .clock = "two", .wall_ahead = 1e15 + 7.25});
  const JoinedTraces joined = join_traces({folder / "b.json", folder / "a.json"}, folder / "all.json");
  ASSERT_EQ(joined.warnings.size(), 1U);
  EXPECT_THAT(joined.warnings[0], HasSubstr("the clock of worker/1 was not compared with that of worker/0"));
  const ReadTrace trace = read_trace(folder / "all.json");
  EXPECT_EQ(begin_of(trace, 0), 5'000);
  EXPECT_EQ(begin_of(trace, 1), 12'250);
}

TEST(TraceJoin, doubts_files_that_were_not_recorded_at_the_same_time) {
  const TestFolder folder;
  write(folder / "a.json", {.rank = 0, .wall_begin = 1, .wall_end = 5});
  write(folder / "b.json", {.rank = 1, .wall_begin = 6, .wall_end = 9});
  const JoinedTraces joined = join_traces({folder / "a.json", folder / "b.json"}, folder / "all.json");
  ASSERT_EQ(joined.warnings.size(), 1U);
  EXPECT_THAT(joined.warnings[0], HasSubstr("were not recorded at the same time: are they of one run?"));
}

TEST(TraceJoin, says_what_is_missing) {
  const TestFolder folder;
  write(folder / "t.json", {.rank = 0, .world = 4});
  write(folder / "t.rank2.json", {.rank = 2, .world = 4, .complete = false});
  const JoinedTraces joined = join_traces({folder / "t.json"}, folder / "all.json");
  EXPECT_EQ(joined.files, 2);
  ASSERT_EQ(joined.warnings.size(), 1U);
  EXPECT_THAT(joined.warnings[0], HasSubstr("there is no file of the ranks 1, 3: "));
  EXPECT_EQ(read_trace(folder / "all.json").json.at("otherData").at("complete"), false);
}

TEST(TraceJoin, refuses_files_that_do_not_belong_together) {
  const TestFolder folder;
  write(folder / "a.json", {.rank = 0});
  write(folder / "b.json", {.rank = 0});
  write(folder / "c.json", {.rank = 1, .world = 4});
  expect_error(ErrorKind::InvalidArgument, HasSubstr("are both of rank 0"), [&] {
    join_traces({folder / "a.json", folder / "b.json"}, folder / "all.json");
  });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("is of a run of 2 workers, but"), [&] {
    join_traces({folder / "a.json", folder / "c.json"}, folder / "all.json");
  });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("is one of the files to join"),
               [&] { join_traces({folder / "a.json"}, folder / "a.json"); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("none.json"),
               [&] { join_traces({folder / "none.json"}, folder / "all.json"); });
  EXPECT_FALSE(path_exists(folder / "all.json"));
}

TEST(TraceJoin, refuses_a_file_that_is_cut_anywhere) {
  const TestFolder folder;
  write(folder / "t.json", {.world = 1});
  const std::string whole = read_file(folder / "t.json");
  for (size_t size = 0; size + 1 < whole.size(); ++size) {
    folder.write("cut.json", whole.substr(0, size));
    EXPECT_THROW(join_traces({folder / "cut.json"}, folder / "all.json"), Error) << size;
  }
  EXPECT_FALSE(path_exists(folder / "all.json"));
}

TEST(TraceJoin, refuses_what_is_no_timeline) {
  const TestFolder folder;
  write(folder / "t.json", {.world = 1});
  const std::string whole = read_file(folder / "t.json");
  const auto with = [&](std::string_view old, std::string_view text) {
    std::string other = whole;
    other.replace(other.find(old), old.size(), text);
    return other;
  };
  for (const std::string& text :
       {std::string("{}"), std::string(1000, '\0'), with("\"world\":1", "\"world\":2000000000"),
        with("\"world\":1", "\"world\":0"), with("\"rank\":0", "\"rank\":-1"),
        with("\"rank\":0", "\"rank\":\"0\""), with("\"rank\":0", "\"rank\":1e99"),
        with("{\"ph\":\"M\"", "5,\n{\"ph\":\"M\""), with("]}", "]}\n]}"),
        with("step", std::string(2 << 20, 'x')), std::string(3 << 20, 'x'),
        with("\"ph\":\"X\"", "\"ph\":\"X"), with("\"clock\"", "\"block\"")}) {
    folder.write("other.json", text);
    EXPECT_THROW(join_traces({folder / "other.json"}, folder / "all.json"), Error) << text;
  }
  EXPECT_THROW(join_traces({folder.path()}, folder / "all.json"), Error);
  EXPECT_FALSE(path_exists(folder / "all.json"));
}

}  // namespace
}  // namespace tutti::trace_join_test
