#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tutti/data/source.h"
#include "tutti/data/tables/schema.h"

namespace tutti::data {

struct TableSourceOptions {
  // Whose IDs are the examples, in its order. Empty: the schema's first.
  std::string master_table = {};
  // Bytes that all of them take at most to keep the numbers that were read; what does not fit is read from
  // its file again.
  uint64_t memory = uint64_t{1} << 30;
  // How many rows the master table of each shard has, where that is known (table_facts.h): a shard is then
  // opened when something of it is first read. Empty: all are opened at once.
  std::vector<int64_t> rows = {};
};

// The tables of these shards as examples, joined by ID within each shard: a float32 tensor a table, with a
// column a column; what is missing is NaN. Rows and IDs are looked through here, numbers when they are read.
//
// Bad data is a DataLoss that names file and line: a row that does not fit its header, text where a number
// is expected, an ID twice or in one table only, a shard whose header is another's or that has no rows. A
// file that is missing is an InvalidArgument that names the shard.
std::shared_ptr<const Source> table_source(const std::vector<std::string>& shards, const Schema& schema,
                                           const TableSourceOptions& options = {});

}  // namespace tutti::data
