#include <vector>

#include <gmock/gmock.h>
#include <torch/types.h>

#include "tutti/base/test_errors.h"
#include "tutti/embedding/owned_rows.h"
#include "tutti/ps/wire.h"

// Tests how the gradients of rows travel to a server.
namespace tutti::ps {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

// The numbers of all tables together are no limit: their product is far beyond that of a tensor's shape.
TEST(RowsInMessages, of_many_large_tables_are_read_as_they_were_sent) {
  constexpr size_t kTables = 26;
  std::vector<std::vector<float>> numbers;
  for (size_t table = 0; table < kTables; ++table)
    numbers.emplace_back(table == 3 ? 0 : 20'000 + table, static_cast<float>(table));
  embedding::RowGradients sent;
  sent.heads = {1, 2, 3};
  for (const std::vector<float>& of_table : numbers) sent.values.emplace_back(of_table);
  rpc::Message message;
  append_rows(message, sent);
  Reader reader(message);
  const embedding::RowGradients read = rows_in(message.head, reader);
  reader.end();
  EXPECT_EQ(read.heads, sent.heads);
  ASSERT_EQ(read.values.size(), kTables);
  for (size_t table = 0; table < kTables; ++table)
    EXPECT_THAT(read.values[table], ElementsAreArray(numbers[table]));
}

TEST(RowsInMessages, of_impossible_sizes_are_refused) {
  for (const char* numbers : {"[-1]", "[1e3]", "[\"7\"]", "[2305843009213693952]"}) {
    rpc::Message message;
    append_rows(message, {.heads = {0}});
    message.head["rows"]["numbers"] = Json::parse(numbers);
    Reader reader(message);
    expect_error(ErrorKind::InvalidArgument, HasSubstr("not a list of counts"),
                 [&] { rows_in(message.head, reader); });
  }
}

}  // namespace
}  // namespace tutti::ps
