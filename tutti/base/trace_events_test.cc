#include "tutti/base/trace_events.h"

#include <csignal>
#include <filesystem>
#include <sys/resource.h>
#include <unistd.h>

#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/base/test_trace.h"

namespace tutti::trace_events_test {
namespace {

using testing::HasSubstr;

TEST(TraceEvents, others_read_what_was_recorded) {
  const TestFolder folder;
  Timeline timeline;
  timeline.name_thread("main \"thread\"");
  timeline.record(Activity::Wait, "sync", "gradi\"ents\n", 3, 2'500, 3'001);
  timeline.record(Activity::Step, "step", "", -1, 1'000, 12'345'678);
  write_trace(folder / "t.json", timeline, {.number = 4, .name = "worker/4 on \\host"}, {{"complete", true}});
  const ReadTrace trace = read_trace(folder / "t.json");
  EXPECT_EQ(trace.json.at("otherData").at("complete"), true);
  EXPECT_EQ(trace.processes, (std::map<int, std::string>{{5, "worker/4 on \\host"}}));
  EXPECT_EQ(trace.threads.begin()->second, "main \"thread\"");
  const auto sync = trace.spans_of(5, "sync of gradi\"ents\n");
  ASSERT_EQ(sync.size(), 1U);
  EXPECT_EQ(sync[0].category, "wait");
  EXPECT_EQ(sync[0].step, 3);
  EXPECT_EQ(sync[0].begin, 2'500);
  EXPECT_EQ(sync[0].end, 3'001);
  EXPECT_EQ(trace.spans_of(5, "step").at(0).end, 12'345'678);
  expect_nested(trace);
}

TEST(TraceEvents, a_name_that_is_no_utf8_does_not_cost_the_file) {
  const TestFolder folder;
  Timeline timeline;
  timeline.record(Activity::Step, "caf\xe9", "", -1, 1, 2);
  write_trace(folder / "t.json", timeline, {}, {});
  EXPECT_EQ(read_trace(folder / "t.json").spans.size(), 1U);
}

TEST(TraceEvents, come_in_pieces_of_about_the_size_that_was_asked_for) {
  Timeline timeline;
  for (int64_t n = 0; n < 20'000; ++n) timeline.record(Activity::Step, "step", "", n, n, n + 1);
  TraceEvents events(timeline, {});
  EXPECT_EQ(events.spans(), 20'000U);
  EXPECT_EQ(first_begin(timeline), 0);
  size_t pieces = 0;
  for (std::string piece = events.next(1000); !piece.empty(); piece = events.next(1000)) {
    EXPECT_LT(piece.size(), 200'000U);
    ++pieces;
  }
  EXPECT_GT(pieces, 10U);
}

TEST(TraceEvents, times_are_those_of_the_clock_they_are_mapped_to) {
  const TestFolder folder;
  Timeline timeline;
  timeline.record(Activity::Step, "step", "", 0, 5'000, 6'000);
  write_trace(folder / "t.json", timeline, {.time = [](int64_t own) { return own - 4'000; }}, {});
  EXPECT_EQ(read_trace(folder / "t.json").spans_of(1, "step").at(0).begin, 1'000);
}

TEST(TraceFile, is_there_whole_or_not_at_all) {
  const TestFolder folder;
  {
    TraceFile file(folder / "t.json", {});
    file.write("{}");
    EXPECT_FALSE(path_exists(folder / "t.json"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  folder.write("t.json", "old");
  TraceFile file(folder / "t.json", {});
  EXPECT_EQ(read_file(folder / "t.json"), "old");
  file.finish();
  EXPECT_TRUE(Json::parse(read_file(folder / "t.json")).at("traceEvents").empty());
}

TEST(TraceFile, leaves_nothing_behind_where_it_cannot_be_written) {
  const TestFolder folder;
  Timeline timeline;
  timeline.record(Activity::Step, "step", "", 0, 1, 2);
  EXPECT_EXIT(
      {
        const rlimit none{};
        ::signal(SIGXFSZ, SIG_IGN);
        ::setrlimit(RLIMIT_FSIZE, &none);
        try {
          write_trace(folder / "t.json", timeline, {}, {});
        } catch (const Error&) {
          _exit(std::filesystem::is_empty(folder.path()) ? 0 : 1);
        }
        _exit(2);
      },
      testing::ExitedWithCode(0), "");
}

TEST(TraceFile, keeps_a_link_whether_or_not_it_leads_to_a_file) {
  const TestFolder folder;
  std::filesystem::create_symlink("real.json", folder / "link.json");
  for (int time = 0; time < 2; ++time) {
    clear_for_trace(folder / "link.json");
    write_trace(folder / "link.json", Timeline(), {}, {});
    EXPECT_TRUE(std::filesystem::is_symlink(folder / "link.json"));
    EXPECT_TRUE(std::filesystem::is_regular_file(folder / "real.json"));
  }
  std::filesystem::create_symlink("loop.json", folder / "loop.json");
  EXPECT_THROW(clear_for_trace(folder / "loop.json"), Error);
}

TEST(TraceFile, its_place_is_cleared_before_anything_is_recorded) {
  const TestFolder folder;
  folder.write("old.json", "of an earlier run");
  clear_for_trace(folder / "old.json");
  clear_for_trace(folder / "t.json");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  expect_error(ErrorKind::InvalidArgument, HasSubstr("no/such/t.json"),
               [&] { clear_for_trace(folder / "no/such/t.json"); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("is not a regular file"),
               [&] { clear_for_trace(folder.path()); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("is not a regular file"),
               [&] { clear_for_trace("/dev/null"); });
}

TEST(TraceFile, of_each_rank_has_a_name_of_its_own) {
  EXPECT_EQ(trace_path("a/run.json", 0), "a/run.json");
  EXPECT_EQ(trace_path("a/run.json", 12), "a/run.rank12.json");
  EXPECT_EQ(trace_path("run", 1), "run.rank1");
}

}  // namespace
}  // namespace tutti::trace_events_test
