#pragma once

#include <string>

#include "tutti/data/feed.h"
#include "tutti/data/tables/schema.h"
#include "tutti/data/tables/shards.h"
#include "tutti/data/tables/table_source.h"

namespace tutti::data {

// The tables in a folder of shards as a feed. Every worker sees all of them, and reads the rows of its own
// lanes: which examples a lane sees at a step does not depend on how many workers there are.
//   const Schema schema = {{"desc", {"descriptors.tsv"}}, {"targ", {"targets.tsv"}}};
//   trainer.fit(tutti::data::table_feed(ctx.flags().data, schema).shuffle());
inline Feed table_feed(const std::string& root, const Schema& schema,
                       const TableSourceOptions& options = {}) {
  return Feed(table_source(shards_in(root), schema, options));
}

}  // namespace tutti::data
