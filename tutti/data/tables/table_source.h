#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tutti/base/progress.h"
#include "tutti/data/source.h"
#include "tutti/data/tables/schema.h"
#include "tutti/lanes/sampler.h"

namespace tutti::data {

// Options of table_source().
struct TableSourceOptions {
  // The table whose IDs are the examples, in its order. Empty: the first of the schema.
  std::string master_table = {};
  // The maximum number of bytes for caching the numbers of all tables; numbers that do not fit are read from
  // their files again.
  uint64_t memory = uint64_t{1} << 30;
  // The number of rows of the master table in each shard, if known (outline_of): a shard is then opened
  // when it is first used. Empty: all shards are opened at once.
  std::vector<int64_t> rows = {};
  // Skip: rows with errors, rows whose ID is missing in another table, and rows with a repeated ID are left
  // out and counted (Source::left_out). All text is then read at once, and all shards are opened.
  BadRows bad_rows = BadRows::Error;
  // Told the bytes of the files of the shards that are opened here, of which all text is looked through.
  OnProgress on_progress = {};
};

// The columns of a table, which must be equal in all shards. Otherwise require_same_columns() throws a
// DataLoss that names both files and the first column that differs.
struct TableColumns {
  std::vector<std::string> names;
  std::string path;
};
void require_same_columns(const TableColumns& own, const TableColumns& first);

// A source whose examples are rows of tables in shards.
class TableSource : public Source {
 public:
  // The number of examples of each shard.
  virtual std::vector<int64_t> rows_of_shards() const = 0;
  // Opens the shards that contain some of these examples. Throws DataLoss if an ID is in two open shards.
  virtual void open(const std::vector<ExampleRange>& ranges, const OnProgress& on_progress) const = 0;
};

// Returns the tables of these shards as examples, joined by ID within each shard: one tensor per table, in
// float32 or int64, as its kind determines (schema.h). Rows and IDs are read here, cells on demand; a file
// with several tables is read once for all of them. The tensors of IDX files have the files' types.
//
// If a file has no IDs (IDX, Ids::RowNumbers), its rows must be those of the master table in its order. If
// the master table has none, the ID of an example is "SHARD/ROW", from 0; the first file with IDs must then
// have its rows in the order of the master table, and others are joined to that file by ID.
//
// For kinds with lists, the tensor "NAME length" next to "NAME" has their lengths: (rows, columns), int64.
//
// Throws a DataLoss that names file and line for bad data: a row that does not match its header, text where a
// number is expected, an ID that occurs twice or in one table only, a shard that has no rows or other columns
// than the others. Throws an InvalidArgument that names the shard if a file is missing.
std::shared_ptr<const TableSource> table_source(const std::vector<std::string>& shards, const Schema& schema,
                                                const TableSourceOptions& options = {});

}  // namespace tutti::data
