#include "tutti/base/environment.h"

#include <stdlib.h>

#include <gtest/gtest.h>

namespace tutti::environment_test {
namespace {

TEST(Environment, tells_an_empty_variable_from_none) {
  const Environment environment({{"EMPTY", ""}, {"FULL", "a=b"}});
  EXPECT_EQ(environment.get("EMPTY"), "");
  EXPECT_EQ(environment.get("FULL"), "a=b");
  EXPECT_EQ(environment.get("NONE"), std::nullopt);
  EXPECT_TRUE(environment.has("EMPTY"));
  EXPECT_FALSE(environment.has("NONE"));
}

TEST(Environment, takes_a_copy_of_the_process_s) {
  ASSERT_EQ(setenv("TUTTI_TEST_ENVIRONMENT", "one=1=uno", 1), 0);
  const Environment environment = Environment::of_process();
  ASSERT_EQ(unsetenv("TUTTI_TEST_ENVIRONMENT"), 0);
  EXPECT_EQ(environment.get("TUTTI_TEST_ENVIRONMENT"), "one=1=uno");
  EXPECT_FALSE(Environment::of_process().has("TUTTI_TEST_ENVIRONMENT"));
}

}  // namespace
}  // namespace tutti::environment_test
