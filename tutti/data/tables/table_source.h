#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tutti/data/sampler.h"
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
  // Skip: rows that are wrong, of which an ID is in one table only, or an ID is there already, are left out
  // and counted (Source::left_out). All text is read at once then, and all shards are opened.
  BadRows bad_rows = BadRows::Error;
};

// The tables of these shards as examples, joined by ID within each shard: a tensor a table, as its kind has
// it (table_kind.h), in float32; what is missing is NaN. Rows and IDs are looked through here, numbers when
// they are read. Of IDX files the tensors have the files' types, and their rows are the master's in its
// order.
//
// Where a kind has lists, "NAME length" beside "NAME" says how long each is: (rows, columns), int64.
//
// Bad data is a DataLoss that names file and line: a row that does not fit its header, text where a number
// is expected, an ID twice or in one table only, a shard whose header is another's or that has no rows. A
// file that is missing is an InvalidArgument that names the shard.
// What a table has to have in all shards alike. A DataLoss names both, and the first column that differs.
struct TableColumns {
  std::vector<std::string> names;
  std::string path;
};
void require_same_columns(const TableColumns& own, const TableColumns& first);

class TableSource : public Source {
 public:
  // Examples, of each shard.
  virtual std::vector<int64_t> rows_of_shards() const = 0;
  // The shards that some of these are in, now.
  virtual void open(const ExampleRange& examples) const = 0;
};
std::shared_ptr<const TableSource> table_source(const std::vector<std::string>& shards, const Schema& schema,
                                                const TableSourceOptions& options = {});

}  // namespace tutti::data
