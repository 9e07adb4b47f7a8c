#include "tutti/kernels/instructions.h"

#include <algorithm>
#include <hwy/targets.h>

#include <gmock/gmock.h>

#include "tutti/base/error.h"

namespace tutti::kernels {
namespace {

using ::testing::HasSubstr;

// Lets the process use the fastest instructions again.
class Instructions : public ::testing::Test {
 protected:
  ~Instructions() override { hwy::GetChosenTarget().Update(hwy::SupportedTargets()); }
};

TEST_F(Instructions, can_be_chosen_among_those_of_the_processor) {
  const std::vector<std::string> available = available_instructions();
  ASSERT_FALSE(available.empty());
  for (const std::string& name : available) {
    use_instructions(name);
    EXPECT_EQ(have_fused_instructions(), name == "avx512" || name == "avx2" || name == "neon") << name;
  }
  EXPECT_EQ(std::adjacent_find(available.begin(), available.end()), available.end());
}

TEST_F(Instructions, that_the_processor_does_not_have_are_refused_by_name) {
  const std::vector<std::string> available = available_instructions();
  const bool is_arm = available.front() == "neon";
  try {
    use_instructions(is_arm ? "avx2" : "neon");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::InvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr(is_arm ? "'avx2'" : "'neon'"));
    EXPECT_THAT(error.what(), HasSubstr("it has " + available.front()));
  }
}

}  // namespace
}  // namespace tutti::kernels
