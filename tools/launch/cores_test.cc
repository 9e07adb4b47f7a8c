#include "tools/launch/cores.h"

#include <algorithm>
#include <unistd.h>

#include <gmock/gmock.h>

namespace tutti::cores_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(Cores, are_those_of_this_process_each_once) {
  std::vector<int> cores = usable_cores();
  ASSERT_FALSE(cores.empty());
  EXPECT_LE(cores.size(), static_cast<size_t>(sysconf(_SC_NPROCESSORS_CONF)));
  std::sort(cores.begin(), cores.end());
  EXPECT_EQ(std::unique(cores.begin(), cores.end()), cores.end());
}

TEST(Cores, are_shared_out_without_gap_or_overlap) {
  const std::vector<int> cores = {0, 4, 1, 5, 2, 6, 3};
  EXPECT_THAT(share_of(cores, 0, 1), ElementsAre(0, 4, 1, 5, 2, 6, 3));
  for (int workers = 1; workers <= 7; ++workers) {
    std::vector<int> together;
    for (int index = 0; index < workers; ++index) {
      const std::vector<int> part = share_of(cores, index, workers);
      EXPECT_GE(part.size(), cores.size() / static_cast<size_t>(workers));
      EXPECT_LE(part.size(), cores.size() / static_cast<size_t>(workers) + 1);
      together.insert(together.end(), part.begin(), part.end());
    }
    EXPECT_EQ(together, cores) << workers << " workers";
  }
}

TEST(Cores, workers_are_not_pinned_if_there_are_more_workers_than_cores) {
  EXPECT_THAT(share_of({0, 1}, 0, 3), IsEmpty());
  EXPECT_THAT(share_of({}, 0, 1), IsEmpty());
}

}  // namespace
}  // namespace tutti::cores_test
