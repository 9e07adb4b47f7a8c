// Tests the network of the first example, with dropout, at several worlds and over every backend.
#include "tests/together.h"

namespace tutti::testing::together_slow_test {
namespace {

void expect_the_bits_of_one(int steps, const std::vector<int>& in_memory, const std::vector<int>& over_tcp) {
  const TestFolder folder;
  const Flags flags = {"--net", "cnn", "--lanes", "8", "--batch", "4", "--steps", std::to_string(steps)};
  const std::string alone = hash_of(on_workers(1, flags), folder);
  for (const int workers : in_memory)
    EXPECT_EQ(hash_of(on_workers(workers, flags), folder), alone) << workers;
  for (const int workers : over_tcp)
    EXPECT_EQ(hash_of(on_workers(workers, with(flags, {"--comm", "tcp"})), folder), alone) << workers;
}

TEST(TogetherCnn, has_the_same_bits_at_every_world) { expect_the_bits_of_one(5, {2, 4}, {3}); }

TEST(TogetherCnnSoak, has_the_same_bits_at_every_world) {
  expect_the_bits_of_one(50, {2, 3, 4, 8}, {2, 3, 8});
}

}  // namespace
}  // namespace tutti::testing::together_slow_test
