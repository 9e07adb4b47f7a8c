#include "tutti/comm/timeline_file.h"

#include <filesystem>
#include <functional>
#include <thread>

#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/base/test_trace.h"
#include "tutti/comm/test_ranks.h"

namespace tutti::comm::timeline_file_test {
namespace {

using ::testing::HasSubstr;

constexpr auto kTimeout = std::chrono::seconds(20);

struct Rank {
  Communicator& comm;
  Timeline& timeline;
};

struct World {
  std::string path;
  std::string backend = "inproc";
  int ranks = 2;
  bool a_machine_each = false;
  // Returns additional options for each rank.
  std::function<TimelineOptions(int rank)> timeline = [](int) { return TimelineOptions{}; };
};

// Works like a training: the ranks connect, create a TimelineFile, and write it when the body has finished.
// Returns the errors by rank.
std::vector<std::string> train(const World& world, const std::function<void(Rank)>& body) {
  const auto make = testing::make_transports(world.backend, world.ranks, kTimeout);
  std::vector<std::string> errors(static_cast<size_t>(world.ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Timeline timeline(world.timeline(rank));
        timeline.name_thread("main");
        Collectives comm(make(rank), kTimeout, &timeline);
        const TimelineFile file(&timeline, &comm,
                                {.path = world.path,
                                 .rank = rank,
                                 .world = world.ranks,
                                 .task = fmt::format("worker/{}", rank),
                                 .host = "here",
                                 .machine = world.a_machine_each ? fmt::format("machine {}", rank) : "one",
                                 .log = Log(LogLevel::Off)});
        body({comm, timeline});
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

void three_barriers(const Rank& rank) {
  for (int64_t step = 0; step < 3; ++step) {
    // A different rank is late in each step.
    std::this_thread::sleep_for(
        std::chrono::milliseconds(step % rank.comm.world() == rank.comm.rank() ? 20 : 0));
    rank.comm.barrier({.step = step});
  }
}

Json about(const std::string& path, int rank) {
  return read_trace(trace_path(path, rank)).json.at("otherData");
}

// Expects that no rank left a barrier before all had reached it, within the uncertainty of the clocks.
void expect_common_barriers(const World& world) {
  const ReadTrace trace = read_traces(world.path, world.ranks);
  const int ranks = world.ranks;
  double uncertainty = 1;
  for (int rank = 0; rank < ranks; ++rank)
    uncertainty += about(world.path, rank).at("clock_uncertainty_us").get<double>() * 1000;
  for (size_t step = 0; step < 3; ++step) {
    int64_t last_come = 0;
    int64_t first_left = std::numeric_limits<int64_t>::max();
    for (int rank = 0; rank < ranks; ++rank) {
      const auto barriers = trace.spans_of(rank + 1, "barrier");
      ASSERT_EQ(barriers.size(), 3U);
      EXPECT_EQ(barriers[step].step, static_cast<int64_t>(step));
      last_come = std::max(last_come, barriers[step].begin);
      first_left = std::min(first_left, barriers[step].end);
    }
    EXPECT_LE(static_cast<double>(last_come - first_left), uncertainty) << "step " << step;
  }
}

TEST(TimelineFile, has_every_rank_on_one_clock) {
  for (const char* backend : {"inproc", "plain"}) {
    const TestFolder folder;
    const World world{.path = folder / "t.json", .backend = backend, .ranks = 3};
    EXPECT_EQ(train(world, three_barriers), std::vector<std::string>(3));
    const ReadTrace trace = read_traces(world.path, 3);
    EXPECT_EQ(trace.processes,
              (std::map<int, std::string>{
                  {1, "worker/0 on here"}, {2, "worker/1 on here"}, {3, "worker/2 on here"}}));
    for (int process = 1; process <= 3; ++process) EXPECT_EQ(trace.threads.at({process, 1}), "main");
    for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(about(world.path, rank).at("complete"), true);
    expect_nested(trace);
    expect_common_barriers(world);
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 3);
  }
}

TEST(TimelineFile, says_who_was_waited_for) {
  const TestFolder folder;
  const World world{.path = folder / "t.json"};
  EXPECT_EQ(train(world, three_barriers), std::vector<std::string>(2));
  const ReadTrace trace = read_traces(world.path, 2);
  // The other rank waits for the one that sleeps.
  for (size_t step = 0; step < 2; ++step) {
    std::vector<int64_t> waited;
    for (int rank = 0; rank < 2; ++rank) {
      for (const auto& span : trace.spans_of(rank + 1, "wait for peers")) {
        if (span.step == static_cast<int64_t>(step)) waited.push_back(span.end - span.begin);
        EXPECT_EQ(span.category, "wait");
      }
    }
    ASSERT_EQ(waited.size(), 2U);
    EXPECT_GT(waited[1 - step], waited[step]);
  }
}

TEST(TimelineFile, clocks_of_several_machines_come_out_aligned) {
  for (const char* backend : {"inproc", "plain"}) {
    const TestFolder folder;
    World world{.path = folder / "t.json", .backend = backend, .ranks = 3, .a_machine_each = true};
    world.timeline = [](int rank) {
      return TimelineOptions{.clock = [rank] {
        return std::chrono::steady_clock::now().time_since_epoch() + rank * std::chrono::hours(5);
      }};
    };
    EXPECT_EQ(train(world, three_barriers), std::vector<std::string>(3));
    expect_nested(read_traces(world.path, 3));
    expect_common_barriers(world);
    const Json last = about(world.path, 2);
    const double uncertainty = last.at("clock_uncertainty_us");
    EXPECT_GT(uncertainty, 0);
    EXPECT_LT(uncertainty, 1e6);
    EXPECT_NEAR(last.at("clock_ahead_us").get<double>(), -10 * 3600e6, uncertainty + 1);
  }
}

TEST(TimelineFile, says_how_many_spans_were_dropped) {
  const TestFolder folder;
  World world{.path = folder / "t.json"};
  world.timeline = [](int) { return TimelineOptions{.most_spans = 1024}; };
  const auto errors = train(world, [](const Rank& rank) {
    for (int64_t n = 0; n < 9000; ++n) const SpanScope span(&rank.timeline, Activity::Compute, "forward", n);
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_GT(about(world.path, rank).at("dropped_spans"), 7000);
    EXPECT_LE(about(world.path, rank).at("spans"), 1024);
  }
  EXPECT_EQ(read_traces(world.path, 2).spans_of(2, "forward").back().step, 8999);
}

TEST(TimelineFile, one_that_cannot_be_written_is_found_before_the_training_and_by_all) {
  const TestFolder folder;
  folder.write("file", "");
  const World world{.path = folder / "file/t.json"};
  bool trained = false;
  const auto errors = train(world, [&](const Rank&) { trained = true; });
  for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("--timeline: "));
  EXPECT_FALSE(trained);
}

TEST(TimelineFile, makes_its_folder) {
  const TestFolder folder;
  const World world{.path = folder / "a/new/t.json"};
  EXPECT_EQ(train(world, [](const Rank&) {}), std::vector<std::string>(2));
  EXPECT_TRUE(std::filesystem::exists(world.path));
}

TEST(TimelineFile, one_that_a_single_rank_cannot_write_is_found_by_all) {
  const TestFolder folder;
  std::filesystem::create_directory(folder / "t.rank1.json");
  const auto errors = train({.path = folder / "t.json"}, [](const Rank&) {});
  EXPECT_THAT(errors[1], HasSubstr("t.rank1.json is not a regular file"));
  EXPECT_THAT(errors[0], HasSubstr("worker/1 gave up: --timeline: "));
}

TEST(TimelineFile, is_written_after_an_error_too) {
  const TestFolder folder;
  const World world{.path = folder / "t.json"};
  const auto errors = train(world, [](const Rank& rank) {
    rank.comm.barrier({.step = 1});
    if (rank.comm.rank() == 1) {
      rank.comm.abandon("worker/1 gave up");
      throw std::runtime_error("out of luck");
    }
    rank.comm.barrier({.step = 2});
  });
  EXPECT_EQ(errors[0], "worker/1 gave up");
  EXPECT_EQ(errors[1], "out of luck");
  for (const char* name : {"t.json", "t.rank1.json"}) {
    const ReadTrace trace = read_trace(folder / name);
    EXPECT_EQ(trace.json.at("otherData").at("complete"), false);
    EXPECT_EQ(trace.processes.size(), 1U);
    EXPECT_EQ(trace.spans_of(trace.processes.begin()->first, "barrier").front().step, 1);
  }
}

TEST(TimelineFile, a_broken_group_does_not_fail_at_the_end) {
  const TestFolder folder;
  const World world{.path = folder / "t.json"};
  const auto errors = train(world, [](const Rank& rank) {
    rank.comm.barrier({.step = 1});
    rank.comm.abandon("nobody wants any more");
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
  EXPECT_EQ(about(world.path, 0).at("why"), "nobody wants any more");
}

TEST(TimelineFile, without_a_timeline_there_is_none) {
  testing::with_ranks("inproc", 2, [](Communicator& comm) {
    TimelineFile file(nullptr, &comm, {.path = "/no/such/file"});
    file.write();
  });
}

TEST(CommonClock, corrects_drift_between_two_readings) {
  // A clock that gains 100 us per second and was an hour ahead.
  constexpr int64_t kHour = 3'600'000'000'000;
  constexpr int64_t kSecond = 1'000'000'000;
  const auto reading = [](int64_t at) {
    return ClockReading{.at = at, .ahead = -kHour - (at - kHour) / 10'000, .uncertainty = 5};
  };
  const CommonClock clock(reading(kHour), reading(kHour + 100 * kSecond));
  EXPECT_EQ(clock(kHour), 0);
  EXPECT_EQ(clock(kHour + 50 * kSecond), 50 * kSecond - 5'000'000);
  EXPECT_EQ(clock(kHour + 100 * kSecond), 100 * kSecond - 10'000'000);
  EXPECT_EQ(clock.uncertainty(), 5);
}

TEST(CommonClock, readings_that_are_close_together_are_no_drift) {
  const ClockReading good{.at = 1000, .ahead = 500, .uncertainty = 10};
  const ClockReading bad{.at = 2000, .ahead = 900, .uncertainty = 1000};
  for (const auto& clock : {CommonClock(good, bad), CommonClock(bad, good)}) {
    EXPECT_EQ(clock(1500), 2000);
    EXPECT_EQ(clock.uncertainty(), 10);
  }
}

TEST(CommonClock, ranks_of_one_machine_have_one_reading) {
  testing::with_ranks("inproc", 4, [](Communicator& comm) {
    const auto now = [] {
      return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
    };
    const auto clocks = compare_clocks(comm, {"a", "b", "a", "b"}, now);
    EXPECT_EQ(clocks[2].uncertainty, 0);
    EXPECT_EQ(clocks[2].ahead, 0);
    EXPECT_GT(clocks[1].uncertainty, 0);
    EXPECT_EQ(clocks[3].at, clocks[1].at);
    EXPECT_EQ(clocks[3].ahead, clocks[1].ahead);
    EXPECT_LE(std::abs(clocks[1].ahead), clocks[1].uncertainty);
  });
}

}  // namespace
}  // namespace tutti::comm::timeline_file_test
