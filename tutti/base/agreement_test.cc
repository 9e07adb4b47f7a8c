#include "tutti/base/agreement.h"

#include <gmock/gmock.h>

#include "tutti/base/error.h"
#include "tutti/base/test_errors.h"

namespace tutti::agreement_test {
namespace {

using ::testing::HasSubstr;

// --epochs, which one worker alone was given, sets its --steps to 0.
TEST(Agreement, names_both_tasks_and_all_flags_that_differ) {
  const Agreement steps{"worker/0", {"--lanes 2", "--steps 10", "--epochs 0", "--batch 4"}};
  const Agreement epochs{"worker/1", {"--lanes 2", "--steps 0", "--epochs 1", "--batch 4"}};
  EXPECT_EQ(difference(steps, epochs),
            "worker/0 has '--steps 10' and '--epochs 0', worker/1 has '--steps 0' and '--epochs 1'");
  EXPECT_EQ(difference(steps, steps), "");
  expect_error(ErrorKind::InvalidArgument, HasSubstr(difference(steps, epochs)),
               [&] { require_same(steps, epochs); });
  EXPECT_NO_THROW(require_same(steps, {"worker/1", steps.lines}));
}

TEST(Agreement, counts_the_flags_of_another_program_that_are_too_many_to_name) {
  const Agreement one{"a", {"--rate 1"}};
  const Agreement other{"b", {"--f 1", "--g 2", "--h 3", "--i 4", "--j 5", "--k 6", "--l 7"}};
  EXPECT_EQ(difference(one, other),
            "a has '--rate 1', b has '--f 1' and '--g 2' and '--h 3' and '--i 4' and '--j 5' and 2 more");
}

TEST(Agreement, names_only_the_first_line_of_a_model_since_those_that_follow_may_all_differ) {
  const Agreement two{"a", {"w float32[2]", "b float32[2]"}};
  EXPECT_EQ(difference(two, {"b", {"w float32[3]", "b float32[3]"}}),
            "a has 'w float32[2]', b has 'w float32[3]'");
  EXPECT_EQ(difference({"a", {"w float32[2]"}}, {"b", {}}), "a has 'w float32[2]', b has nothing more");
  EXPECT_EQ(
      difference({"a", {"--lanes 2", "w float32[2]"}}, {"b", {"--lanes 2", "--mine 1", "w float32[2]"}}),
      "a has 'w float32[2]', b has '--mine 1'");
}

}  // namespace
}  // namespace tutti::agreement_test
