#include "tutti/data/tables/table_facts.h"

#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <string>
#include <sys/file.h>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "tutti/base/file.h"
#include "tutti/base/json.h"
#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"

namespace tutti::data {
namespace {

using ::testing::HasSubstr;

class TableFactsTest : public ::testing::Test {
 protected:
  std::string kept() const { return folder_ / ".t.tsv.tutti.json"; }
  const TestFolder folder_;
  const std::string table_ = folder_.write("t.tsv", "ID\tx\ty\na\t1\t\nb\t4\t0.1\nc\t1\t0.3\n");
};

void expect_facts_of_table(const std::string& path) {
  const TableStatistics found = statistics_of(path, tsv());
  ASSERT_EQ(found.columns.size(), 2);
  EXPECT_EQ(found.columns[0].max, 4);
  EXPECT_EQ(found.columns[0].mean, 2);
  EXPECT_EQ(found.columns[1].missing, 1);
  EXPECT_EQ(found.columns[1].min, static_cast<double>(0.1F));
}

TEST_F(TableFactsTest, are_kept_beside_the_table_and_found_again_to_the_last_bit) {
  EXPECT_EQ(outline_of(table_, tsv()).rows, 3);
  EXPECT_EQ(outline_of(table_, tsv()).columns, (std::vector<std::string>{"x", "y"}));
  expect_facts_of_table(table_);
  const std::string text = read_file(kept());
  expect_facts_of_table(table_);
  EXPECT_EQ(read_file(kept()), text);
  // The facts come from the cache: the table is not read again.
  folder_.write(".t.tsv.tutti.json", [&] {
    std::string other = text;
    other.replace(other.find("\"rows\":3"), 8, "\"rows\":7");
    return other;
  }());
  EXPECT_EQ(outline_of(table_, tsv()).rows, 7);
}

TEST_F(TableFactsTest, are_found_anew_for_another_file_or_another_way_to_read_it) {
  EXPECT_EQ(outline_of(table_, tsv()).rows, 3);
  TextFormat no_header = tsv();
  no_header.header = false;
  EXPECT_EQ(outline_of(table_, no_header).rows, 4);
  std::ofstream(table_, std::ios::app) << "d\t1\t1\n";
  EXPECT_EQ(outline_of(table_, tsv()).rows, 4);
  for (const char* nonsense : {"", "{", "[]", "{\"of\": 3}"}) {
    folder_.write(".t.tsv.tutti.json", nonsense);
    EXPECT_EQ(outline_of(table_, tsv()).rows, 4);
  }
}

TEST_F(TableFactsTest, that_were_tampered_with_are_found_anew) {
  expect_facts_of_table(table_);
  std::string text = read_file(kept());
  const size_t columns = text.find("\"statistics\"");
  folder_.write(".t.tsv.tutti.json",
                text.substr(0, columns) + "\"statistics\":{\"float32\":[[\"x\",1,2],\"y\"]}}");
  expect_facts_of_table(table_);
}

TEST_F(TableFactsTest, of_any_other_type_are_found_anew) {
  expect_facts_of_table(table_);
  const Json whole = parse_json(read_file(kept()), "facts");
  const std::vector<std::string> values = {"null",
                                           "true",
                                           "-1",
                                           "0.5",
                                           "1e300",
                                           "\"x\"",
                                           "[]",
                                           "[1]",
                                           "{}",
                                           "18446744073709551615",
                                           "[[1, 2, 3]]",
                                           "[[-1, 0], [true, 0]]",
                                           R"({"float32": 3})",
                                           R"({"float32": [["x", -1, 0], ["y", true, 0]]})"};
  for (const char* key : {"of", "rows", "ids", "names", "statistics"}) {
    for (const std::string& value : values) {
      Json changed = whole;
      changed[key] = parse_json(value, "x");
      folder_.write(".t.tsv.tutti.json", changed.dump());
      expect_facts_of_table(table_);
      folder_.write(".t.tsv.tutti.json", changed.dump());
      EXPECT_NO_THROW(outline_of(table_, tsv())) << key << ": " << value;
    }
  }
  folder_.write(".t.tsv.tutti.json", std::string(60000, '['));
  expect_facts_of_table(table_);
}

TEST_F(TableFactsTest, are_not_kept_where_nothing_can_be_written) {
  std::filesystem::permissions(folder_.path(),
                               std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  EXPECT_EQ(outline_of(table_, tsv()).rows, 3);
  expect_facts_of_table(table_);
  std::filesystem::permissions(folder_.path(), std::filesystem::perms::owner_all);
}

TEST_F(TableFactsTest, are_asked_for_by_many_at_once) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back([&] { expect_facts_of_table(table_); });
  for (std::thread& thread : threads) thread.join();
}

// The holder of the lock may be a stopped task, or another program.
TEST_F(TableFactsTest, are_found_although_somebody_keeps_the_table_locked) {
  const FileDescriptor held(table_, O_RDONLY);
  ASSERT_EQ(flock(held.get(), LOCK_EX), 0);
  EXPECT_EQ(outline_of(table_, tsv()).rows, 3);
}

TEST_F(TableFactsTest, say_what_is_wrong_with_the_table) {
  expect_error(ErrorKind::DataLoss, HasSubstr("bad.tsv:2"),
               [&] { statistics_of(folder_.write("bad.tsv", "ID\tx\na\tb\n"), tsv()); });
  EXPECT_THROW(outline_of(folder_ / "none.tsv", tsv()), Error);
}

}  // namespace
}  // namespace tutti::data
