#include "tools/launch/line_splitter.h"

#include <vector>

#include <gmock/gmock.h>

namespace tutti::line_splitter_test {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::IsEmpty;

// A time well after the clock's epoch, as with a real clock.
constexpr LineSplitter::Time kStart{std::chrono::hours(5)};

struct Lines {
  LineSplitter splitter;
  std::vector<std::string> lines = {};
  std::vector<std::string> live = {};

  LineSplitter::OnLine on_line() {
    return [this](std::string_view line, bool is_live) {
      lines.emplace_back(line);
      if (is_live) live.emplace_back(line);
    };
  }
  void feed(std::string_view bytes, LineSplitter::Time now = kStart) { splitter.feed(bytes, now, on_line()); }
  void finish() { splitter.finish(on_line()); }
};

TEST(LineSplitter, holds_back_a_line_until_it_is_whole) {
  Lines lines;
  lines.feed("first\nsec");
  EXPECT_THAT(lines.lines, ElementsAre("first"));
  lines.feed("ond\n\nthird");
  EXPECT_THAT(lines.lines, ElementsAre("first", "second", ""));
  lines.finish();
  EXPECT_THAT(lines.lines, ElementsAre("first", "second", "", "third"));
}

TEST(LineSplitter, takes_carriage_return_and_newline_for_one_end) {
  Lines lines;
  lines.feed("one\r");
  lines.feed("\ntwo\r\n");
  lines.finish();
  EXPECT_THAT(lines.lines, ElementsAre("one", "two"));
}

TEST(LineSplitter, shows_a_live_line_once_a_second_and_its_last_state) {
  Lines lines;
  lines.feed("\r10 %\r20 %\r30 %");
  EXPECT_THAT(lines.lines, ElementsAre("10 %"));
  lines.feed("\r40 %", kStart + milliseconds(999));
  EXPECT_THAT(lines.lines, ElementsAre("10 %"));
  lines.feed("\r50 %", kStart + milliseconds(1000));
  EXPECT_THAT(lines.lines, ElementsAre("10 %", "40 %"));
  lines.feed("\r100 %\n", kStart + milliseconds(1001));
  EXPECT_THAT(lines.lines, ElementsAre("10 %", "40 %", "100 %"));
  EXPECT_THAT(lines.live, ElementsAre("10 %", "40 %"));
}

TEST(LineSplitter, shows_a_live_line_as_often_as_it_is_asked_to) {
  Lines lines{LineSplitter(LineSplitter::kLongestLine, milliseconds(0))};
  lines.feed("10 %\r20 %\r30 %\r");
  EXPECT_THAT(lines.live, ElementsAre("10 %", "20 %"));
}

TEST(LineSplitter, removes_a_live_line_at_a_second_return) {
  Lines lines;
  lines.feed("10 %\r20 %\r\r");
  EXPECT_THAT(lines.live, ElementsAre("10 %", ""));
  lines.feed("a line\n");
  lines.feed("never shown\r\rthe end\r\r\n", kStart + milliseconds(2000));
  EXPECT_THAT(lines.lines, ElementsAre("10 %", "", "a line", "the end"));
}

TEST(LineSplitter, an_empty_stream_and_lone_returns_give_no_line) {
  Lines lines;
  lines.feed("");
  lines.feed("\r\r\r");
  lines.finish();
  EXPECT_THAT(lines.lines, IsEmpty());
}

TEST(LineSplitter, cuts_an_endless_line_into_pieces_and_loses_nothing) {
  Lines lines;
  const std::string endless(3 * LineSplitter::kLongestLine + 7, 'x');
  lines.feed(endless);
  lines.finish();
  ASSERT_EQ(lines.lines.size(), 4U);
  EXPECT_EQ(lines.lines[0].size(), LineSplitter::kLongestLine);
  EXPECT_EQ(lines.lines[3].size(), 7U);
}

TEST(LineSplitter, keeps_bytes_that_are_no_text) {
  Lines lines;
  const std::string odd("\0\xff\x1b[31m", 7);
  lines.feed(odd + "\n");
  EXPECT_THAT(lines.lines, ElementsAre(odd));
}

}  // namespace
}  // namespace tutti::line_splitter_test
