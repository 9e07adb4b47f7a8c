#pragma once

#include <cstdint>
#include <string>

#include "tutti/cluster/context.h"
#include "tutti/data/feed.h"
#include "tutti/data/tables/schema.h"

namespace tutti::data {

// Which worker reads which examples of a folder of shards.
enum class Partition {
  // Worker r those of the shards r, r + W, ...: each opens its own shards and no other. What a lane sees
  // depends on the number of workers, and so do the bits.
  Mod,
  // Each lane an equal share of the rows, neighbours in the order of the shards: a worker reads only the
  // shards in which its lanes have some. The same bits at any number of workers.
  Size,
  // Each worker all of them. The same bits at any number of workers, and those of table_feed().
  All,
};

// "mod", "size" or "all"; else InvalidArgument.
Partition parse_partition(const std::string& text);

struct DistributedFeedOptions {
  std::string master_table = {};  // as in TableSourceOptions
  Partition partition = Partition::Mod;
  uint64_t memory = uint64_t{1} << 30;
};

// The tables in a folder of shards as this worker's feed. Every worker has to see the same folder. With Mod
// there have to be as many shards as workers or more, and a lane for each worker: else InvalidArgument.
//
// Workers do not talk to each other for it. Each has to know how many rows every shard has, and whether all
// have the same columns; where one has found that out, the others find it beside the shard (table_facts.h).
Feed distributed_feed(const Context& context, const std::string& root, const Schema& schema,
                      const DistributedFeedOptions& options = {});

}  // namespace tutti::data
