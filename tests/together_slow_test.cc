// Tests the network of the first example, with dropout, at every world and over every backend.
#include "tests/together.h"

namespace tutti::testing {
namespace {

TEST(TogetherSlow, the_cnn_has_the_same_bits_at_every_world) {
  const TestFolder folder;
  const std::vector<std::string> flags = {"--net", "cnn", "--lanes", "8", "--batch", "4", "--steps", "50"};
  const std::string alone = hash_of(training(1, flags), folder);
  for (const int workers : {2, 3, 4, 8})
    EXPECT_EQ(hash_of(training(workers, flags), folder), alone) << workers;
  std::vector<std::string> over_tcp = flags;
  over_tcp.insert(over_tcp.end(), {"--comm", "tcp"});
  for (const int workers : {2, 3, 8})
    EXPECT_EQ(hash_of(training(workers, over_tcp), folder), alone) << workers;
}

}  // namespace
}  // namespace tutti::testing
