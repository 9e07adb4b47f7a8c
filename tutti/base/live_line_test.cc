#include "tutti/base/live_line.h"

#include <gtest/gtest.h>

namespace tutti::live_line_test {
namespace {

TEST(LiveLine, fits_into_the_columns_of_the_terminal) {
  EXPECT_EQ(fitted_to("step 12", 7), "step 12");
  EXPECT_EQ(fitted_to("step 12", 6), "step 1");
  EXPECT_EQ(fitted_to("step 12", 0), "");
  EXPECT_EQ(fitted_to("größer", 4), "größ");
}

TEST(LiveLine, keeps_the_end_of_a_colour_that_does_not_fit) {
  EXPECT_EQ(fitted_to("[\x1b[32m====\x1b[0m  ]", 3), "[\x1b[32m==\x1b[0m");
}

TEST(LiveLine, replaces_the_text_before_it) {
  EXPECT_EQ(replaced_by("step 12", 80), "\r\x1b[Kstep 12");
  EXPECT_EQ(replaced_by("step 12", 7), "\r\x1b[Kstep 1");
}

// The tests' stderr may be a terminal.
TEST(LiveLine, is_shown_as_it_was_asked_for) {
  EXPECT_TRUE(is_live(kLogLive));
  EXPECT_FALSE(is_live(kLogPlain));
  EXPECT_FALSE(LiveLine(kLogPlain).is_shown());
}

TEST(LiveLine, has_a_bar_of_one_width) {
  const LiveLine line(kLogPlain);
  EXPECT_EQ(line.bar(0), "[>                   ]");
  EXPECT_EQ(line.bar(0.5), "[==========>         ]");
  EXPECT_EQ(line.bar(1), "[====================]");
  EXPECT_EQ(line.bar(7), line.bar(1));
}

}  // namespace
}  // namespace tutti::live_line_test
