#include "tutti/store/weight_hashes.h"

#include <gmock/gmock.h>

#include "tutti/base/file.h"
#include "tutti/base/test_folder.h"

namespace tutti::store::weight_hashes_test {
namespace {

using Hashes = std::map<int64_t, std::string>;

std::string hash(char digit) { return std::string(64, digit); }

TEST(WeightHashes, are_read_as_they_were_added) {
  const TestFolder folder;
  EXPECT_TRUE(read_weight_hashes(folder.path()).empty());
  WeightHashes hashes(folder / "new/run", 0);
  hashes.add(10, hash('a'));
  hashes.add(20, hash('b'));
  EXPECT_EQ(read_weight_hashes(folder / "new/run"), (Hashes{{10, hash('a')}, {20, hash('b')}}));
}

TEST(WeightHashes, of_steps_that_are_made_again_are_forgotten) {
  const TestFolder folder;
  WeightHashes first(folder.path(), 0);
  for (const int64_t step : {10, 20, 30}) first.add(step, hash('a'));
  WeightHashes second(folder.path(), 20);
  EXPECT_EQ(read_weight_hashes(folder.path()), (Hashes{{10, hash('a')}, {20, hash('a')}}));
  second.add(30, hash('b'));
  EXPECT_EQ(read_weight_hashes(folder.path()).at(30), hash('b'));
}

TEST(WeightHashes, that_a_killed_process_has_not_finished_are_left_out) {
  const TestFolder folder;
  const std::string whole = "10\t" + hash('a') + "\n";
  const std::string path = folder / "hashes.tsv";
  for (const std::string& rest : {std::string("20"), std::string("20\tbb"), std::string("x\t") + hash('b'),
                                  std::string("\n\n"), std::string("\t\t\n"), std::string(1, '\0')}) {
    replace_file(path, whole + rest);
    EXPECT_EQ(read_weight_hashes(folder.path()), (Hashes{{10, hash('a')}})) << rest;
  }
  replace_file(path, whole + "20\tbb");
  WeightHashes(folder.path(), 10).add(20, hash('c'));
  EXPECT_EQ(read_weight_hashes(folder.path()), (Hashes{{10, hash('a')}, {20, hash('c')}}));
}

}  // namespace
}  // namespace tutti::store::weight_hashes_test
