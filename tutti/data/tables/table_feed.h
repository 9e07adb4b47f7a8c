#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tutti/cluster/context.h"
#include "tutti/comm/group.h"
#include "tutti/data/feed.h"
#include "tutti/data/tables/schema.h"
#include "tutti/data/tables/shards.h"
#include "tutti/data/tables/table_source.h"

namespace tutti::data {

// Returns the tables in a folder of shards as a feed. Every worker sees all examples, and reads the rows of
// its lanes: the examples of a lane at a step do not depend on the number of workers.
//   const Schema schema = {{"desc", {"descriptors.tsv"}}, {"targ", {"targets.tsv"}}};
//   trainer.fit(tutti::data::table_feed(ctx, ctx.config().data.path, schema).shuffle());
// While the chief reads large tables, the live line shows how far it is.
Feed table_feed(const Context& context, const std::string& root, const Schema& schema,
                const TableSourceOptions& options = {});
// Like the one above, but shows no line: for processes that train nothing.
inline Feed table_feed(const std::string& root, const Schema& schema,
                       const TableSourceOptions& options = {}) {
  return Feed(table_source(shards_in(root), schema, options));
}

// Determines which worker reads which examples of a folder of shards.
enum class Partition {
  // Worker r of W reads the shards r, r + W, ..., and opens no others. The examples of a lane depend on the
  // number of workers, and so do the bits of the result.
  Mod,
  // Each lane has an equal share of the rows, consecutive in the order of the shards. A worker reads only the
  // shards that have rows of its lanes. The bits of the result do not depend on the number of workers.
  Size,
  // Each worker can read all examples. With any number of workers, the bits are the same as with
  // table_feed().
  All,
};

// Parses "mod", "size" or "all"; anything else is an InvalidArgument.
Partition parse_partition(const std::string& text);

// Options of distributed_feed().
struct DistributedFeedOptions {
  std::string master_table = {};          // as in TableSourceOptions
  Partition partition = Partition::Size;  // what each worker reads
  uint64_t memory = uint64_t{1} << 30;    // as in TableSourceOptions
  std::optional<Group> group = {};        // the workers that train on the feed; empty: all of the job
};

// Returns the tables in a folder of shards as this worker's feed. Every worker must see the same folder. Mod
// requires at least as many shards as workers, and a lane for each worker; else InvalidArgument.
//
// The workers do not communicate. Each of them must know the number of rows of every shard, and that all
// shards have the same columns; the first worker that determines this caches it next to the shard for the
// others (outline_of in table.h).
Feed distributed_feed(const Context& context, const std::string& root, const Schema& schema,
                      const DistributedFeedOptions& options = {});

}  // namespace tutti::data
