#include "tutti/comm/nccl/choice.h"

#include <gtest/gtest.h>

namespace tutti::comm::choice_test {
namespace {

TEST(ChoiceOfNccl, is_made_where_every_rank_has_a_gpu_of_its_own) {
  EXPECT_EQ(why_not_nccl({{"worker/0", "a", "0000:01:00"},
                          {"worker/1", "a", "0000:02:00"},
                          {"worker/2", "b", "0000:01:00"}}),
            "");
}

TEST(ChoiceOfNccl, says_who_has_no_gpu_or_not_for_itself) {
  EXPECT_EQ(why_not_nccl({{"worker/0", "a", "0000:01:00"}, {"worker/1", "b", device_word(torch::kCPU)}}),
            "worker/1 has no GPU");
  EXPECT_EQ(why_not_nccl({{"worker/0", "a", "0000:01:00"},
                          {"worker/1", "b", "0000:01:00"},
                          {"worker/2", "a", "0000:01:00"}}),
            "worker/0 and worker/2 share a GPU");
}

}  // namespace
}  // namespace tutti::comm::choice_test
