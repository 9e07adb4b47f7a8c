#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tutti/data/tables/schema.h"

namespace tutti::data {

struct ShardOptions {
  enum class By { Rows, Bytes };
  By by = By::Rows;  // what the shards have as equally much of as can be: rows, or bytes of all tables
  int64_t shards = 1;
};

// What became of one.
struct CutShard {
  std::string folder;
  int64_t rows = 0;
  uint64_t bytes = 0;
};

// Cuts tables into shards, all alike: `out`/shard0, shard1, ... each with a file for each table, with its
// header. The rows of the first table are cut where they stand, in order; those of the others go to the shard
// that has their ID, in their own order, so that one need not fit into memory. Rows are copied as they are.
//
// Files are called as the tables' files are, without their folders. InvalidArgument: more shards than rows,
// two tables of one name, a folder that has something in it already. DataLoss: as table_source() has it.
std::vector<CutShard> shard_tables(const std::vector<TableFile>& tables, const std::string& out,
                                   const ShardOptions& options);

}  // namespace tutti::data
