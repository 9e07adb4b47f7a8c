#pragma once

#include <string>

#include "tutti/data/feed.h"
#include "tutti/data/tables/schema.h"
#include "tutti/data/tables/shards.h"
#include "tutti/data/tables/table_source.h"

namespace tutti::data {

// Returns the tables in a folder of shards as a feed. Every worker sees all examples, and reads the rows of
// its own lanes: the examples of a lane at a step do not depend on the number of workers.
//   const Schema schema = {{"desc", {"descriptors.tsv"}}, {"targ", {"targets.tsv"}}};
//   trainer.fit(tutti::data::table_feed(ctx.config().data.path, schema).shuffle());
inline Feed table_feed(const std::string& root, const Schema& schema,
                       const TableSourceOptions& options = {}) {
  return Feed(table_source(shards_in(root), schema, options));
}

}  // namespace tutti::data
