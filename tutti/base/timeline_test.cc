#include "tutti/base/timeline.h"

#include <set>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tutti::timeline_test {
namespace {

// A clock that advances by one nanosecond whenever it is read.
TimelineOptions counting(size_t most_spans = 1 << 16) {
  return {.most_spans = most_spans, .clock = [now = 0]() mutable { return std::chrono::nanoseconds(++now); }};
}

std::vector<Timeline::Span> all_of(const Timeline& timeline, size_t track) {
  std::vector<Timeline::Span> all;
  std::vector<Timeline::Span> some;
  const Timeline::Track there = timeline.tracks().at(track);
  for (uint64_t number = there.first; number < there.end;) {
    number = timeline.read(track, number, 100, some);
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

TEST(Timeline, keeps_what_scopes_have_measured) {
  Timeline timeline(counting());
  {
    const SpanScope step(&timeline, Activity::Step, "step", 7);
    const SpanScope wait(&timeline, Activity::Wait, "sync", 7, "gradients");
  }
  const auto spans = all_of(timeline, 0);
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[0].name, "sync");
  EXPECT_EQ(spans[0].what, "gradients");
  EXPECT_EQ(spans[0].activity, Activity::Wait);
  EXPECT_EQ(spans[1].name, "step");
  EXPECT_EQ(spans[1].step, 7);
  EXPECT_EQ((std::vector{spans[1].begin, spans[0].begin, spans[0].end, spans[1].end}),
            (std::vector<int64_t>{1, 2, 3, 4}));
}

TEST(Timeline, a_scope_without_one_does_nothing) {
  const SpanScope scope(nullptr, Activity::Step, "step");
  name_thread(nullptr, "nobody");
}

TEST(Timeline, texts_may_end_before_it) {
  Timeline timeline(counting());
  {
    const std::string name = "a name that is too long to be kept inside of a string";
    timeline.record(Activity::Operator, name, "", -1, 1, 2);
  }
  EXPECT_EQ(all_of(timeline, 0).at(0).name, "a name that is too long to be kept inside of a string");
}

TEST(Timeline, every_thread_has_a_track) {
  Timeline timeline;
  timeline.name_thread("main");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&timeline, i] {
      timeline.name_thread(fmt::format("reader {}", i));
      for (int64_t n = 0; n < 2000; ++n) const SpanScope scope(&timeline, Activity::Read, "read", n);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto tracks = timeline.tracks();
  std::set<std::string> names;
  for (size_t t = 0; t < tracks.size(); ++t) {
    names.insert(tracks[t].name);
    const auto spans = all_of(timeline, t);
    EXPECT_EQ(spans.size(), t == 0 ? 0U : 2000U);
    for (size_t i = 0; i < spans.size(); ++i) EXPECT_EQ(spans[i].step, static_cast<int64_t>(i));
  }
  EXPECT_EQ(names, (std::set<std::string>{"main", "reader 0", "reader 1", "reader 2", "reader 3"}));
}

TEST(Timeline, a_thread_keeps_its_track_for_as_long_as_it_keeps_its_name) {
  Timeline timeline(counting());
  timeline.name_thread("one");
  timeline.name_thread("one");
  timeline.record(Activity::Step, "a", "", -1, 1, 2);
  timeline.name_thread("two");
  timeline.record(Activity::Step, "b", "", -1, 3, 4);
  ASSERT_EQ(timeline.tracks().size(), 2U);
  EXPECT_EQ(all_of(timeline, 0).at(0).name, "a");
  EXPECT_EQ(all_of(timeline, 1).at(0).name, "b");
}

TEST(Timeline, forgets_the_oldest_beyond_its_limit_and_says_how_many) {
  Timeline timeline(counting(1024));
  constexpr int64_t kSpans = 10'000;
  for (int64_t n = 0; n < kSpans; ++n) timeline.record(Activity::Step, "step", "", n, n, n + 1);
  const auto track = timeline.tracks().at(0);
  EXPECT_EQ(track.end, static_cast<uint64_t>(kSpans));
  EXPECT_GT(track.end - track.first, 500U);
  EXPECT_LE(track.end - track.first, 1024U);
  const auto spans = all_of(timeline, 0);
  ASSERT_EQ(spans.size(), track.end - track.first);
  EXPECT_EQ(spans.front().step, static_cast<int64_t>(track.first));
  EXPECT_EQ(spans.back().step, kSpans - 1);
}

TEST(Timeline, a_thread_that_comes_late_has_room_too) {
  Timeline timeline(counting(512));
  for (int64_t n = 0; n < 5000; ++n) timeline.record(Activity::Step, "step", "", n, n, n + 1);
  std::thread([&] { timeline.record(Activity::Step, "late", "", -1, 1, 2); }).join();
  EXPECT_EQ(all_of(timeline, 1).at(0).name, "late");
}

TEST(Timeline, has_a_limit_of_different_texts) {
  Timeline timeline(counting());
  for (int i = 0; i < 10'000; ++i) timeline.record(Activity::Step, fmt::format("name {}", i), "", -1, 1, 2);
  const auto spans = all_of(timeline, 0);
  EXPECT_EQ(spans.front().name, "name 0");
  EXPECT_EQ(spans.back().name, "(too many different names)");
}

TEST(Timeline, reading_goes_on_where_it_was_when_spans_are_forgotten_meanwhile) {
  Timeline timeline(counting(1024));
  for (int64_t n = 0; n < 1024; ++n) timeline.record(Activity::Step, "step", "", n, n, n + 1);
  std::vector<Timeline::Span> spans;
  uint64_t number = timeline.read(0, 0, 100, spans);
  EXPECT_EQ(number, 100U);
  for (int64_t n = 1024; n < 1600; ++n) timeline.record(Activity::Step, "step", "", n, n, n + 1);
  number = timeline.read(0, number, 1, spans);
  EXPECT_EQ(spans.at(0).step, static_cast<int64_t>(timeline.tracks().at(0).first));
  EXPECT_EQ(number, timeline.tracks().at(0).first + 1);
}

}  // namespace
}  // namespace tutti::timeline_test
