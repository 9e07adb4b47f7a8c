#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/base/progress.h"
#include "tutti/data/tables/schema.h"

namespace tutti::data {

// Returns the folders in `root`, each of which is a shard, with shard2 before shard10. Ignores names that
// begin with a dot. Throws InvalidArgument if `root` does not exist or has no folders.
std::vector<std::string> shards_in(const std::string& root);

// Returns the path of the file for the schema's table `name`. Throws an InvalidArgument that names the shard
// if it does not exist.
std::string path_in(const std::string& shard, const std::string& name, const TableFile& table);

// Returns the number of bytes of the files of these shards. Throws as path_in().
int64_t bytes_in(const std::vector<std::string>& shards, const Schema& schema);

// Options of cutting tables into shards.
struct ShardOptions {
  // A quantity of which each shard gets an equal part.
  enum class By { Rows, Bytes };
  By by = By::Rows;         // the quantity that is balanced: rows, or bytes of all tables
  int64_t shards = 1;       // the number of shards
  OnProgress reading = {};  // told the bytes of the tables that were looked through
  OnProgress writing = {};  // then told the rows that were written
};

// A shard that was written.
struct CutShard {
  std::string folder;
  int64_t rows = 0;
  uint64_t bytes = 0;
};

// Cuts tables into shards of equal structure: `out`/shard0, shard1, ..., with one file and its header per
// table. The first table is cut in the order of its rows; the rows of the others go to the shard with their
// ID, in their own order, so that no table needs to fit into memory. Rows are copied unchanged.
//
// The files have the names of the tables' files. Throws InvalidArgument for more shards than rows, two tables
// of one name, or a folder that is not empty, and DataLoss in the same cases as table_source().
std::vector<CutShard> shard_tables(const std::vector<TableFile>& tables, const std::string& out,
                                   const ShardOptions& options);

}  // namespace tutti::data
