#include "tutti/base/every.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/error.h"

namespace tutti::every_test {
namespace {

TEST(Every, reads_steps_and_seconds) {
  EXPECT_EQ(parse_every("500"), (Every{.steps = 500}));
  EXPECT_EQ(parse_every("600s"), (Every{.seconds = 600}));
  EXPECT_EQ(parse_every("0.5s"), (Every{.seconds = 0.5}));
  EXPECT_EQ(parse_every("9223372036854775807").steps, INT64_MAX);
  EXPECT_EQ(parse_every("auto"), (Every{.automatic = true}));
}

TEST(Every, zero_is_never) {
  EXPECT_TRUE(parse_every("0").never());
  EXPECT_TRUE(parse_every("0s").never());
  EXPECT_FALSE(parse_every("1").never());
  EXPECT_FALSE(parse_every("1s").never());
  EXPECT_FALSE(parse_every("auto").never());
}

TEST(Every, quotes_what_it_cannot_read) {
  for (const char* text : {"", "s", "x", "-1", "-1s", "5 s", "5m", "1.5", "nans", "infs",
                           "9223372036854775808", "5ss", "autos", "Auto"}) {
    try {
      parse_every(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::InvalidArgument);
      EXPECT_THAT(error.what(), testing::HasSubstr("'" + std::string(text) + "'"));
    }
  }
}

TEST(StepInterval, is_one_step_or_a_range) {
  EXPECT_EQ(parse_step_interval("10").begin, 10);
  EXPECT_EQ(parse_step_interval("10").end, 11);
  EXPECT_EQ(parse_step_interval("0..12").begin, 0);
  EXPECT_EQ(parse_step_interval("0..12").end, 12);
  for (const char* text : {"", "..", "5..", "..5", "5..5", "-1", "-2..4", "1..2..3", "9223372036854775807"})
    EXPECT_THROW(parse_step_interval(text), Error) << text;
}

TEST(Due, counts_steps_or_seconds) {
  Due fives({.steps = 5, .seconds = 0});
  EXPECT_FALSE(fives.at(4));
  EXPECT_TRUE(fives.at(5));
  fives.restart(5);
  EXPECT_FALSE(fives.at(9));
  // If other tasks take some of the steps, a multiple may be skipped.
  EXPECT_TRUE(fives.at(11));
  EXPECT_FALSE(Due({}).at(10));
  EXPECT_FALSE(Due({.steps = 0, .seconds = 3600}).at(10));
  Due always({.steps = 0, .seconds = 1e-9});
  EXPECT_TRUE(always.at(1));
  always.restart(1);
  EXPECT_TRUE(always.at(1));
}

}  // namespace
}  // namespace tutti::every_test
