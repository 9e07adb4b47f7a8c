#include "tutti/data/tables/distributed_feed.h"

#include <numeric>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/data/tables/shards.h"
#include "tutti/data/tables/table_facts.h"
#include "tutti/data/tables/table_source.h"
#include "tutti/params/lanes.h"

namespace tutti::data {
namespace {

using Ranges = std::vector<ExampleRange>;

// Neighbours, of as equal a size as can be.
void split(const ExampleRange& all, int parts, Ranges& into) {
  const auto shares = parts > 0 && all.size() > 0 ? blocks_of(parts, all.size()) : std::vector<LaneRange>();
  for (int part = 0; part < parts; ++part) {
    const LaneRange share = shares.empty() ? LaneRange{} : shares[static_cast<size_t>(part)];
    into.push_back({all.begin + share.begin, all.begin + share.end});
  }
}

Ranges split_among_lanes(int64_t examples, int64_t lanes) {
  Ranges ranges;
  split({0, examples}, static_cast<int>(lanes), ranges);
  return ranges;
}

// The shards in the order of the workers that have them, and how many each worker has.
std::vector<std::string> by_worker(const std::vector<std::string>& shards, int world,
                                   std::vector<size_t>& of_each) {
  std::vector<std::string> ordered;
  for (int rank = 0; rank < world; ++rank) {
    const size_t before = ordered.size();
    for (auto i = static_cast<size_t>(rank); i < shards.size(); i += static_cast<size_t>(world))
      ordered.push_back(shards[i]);
    of_each.push_back(ordered.size() - before);
  }
  return ordered;
}

// What the lanes of each worker share among themselves.
Ranges split_among_workers(const Ranges& of_workers, int64_t lanes) {
  const auto world = static_cast<int>(of_workers.size());
  if (lanes < world)
    fail(ErrorKind::InvalidArgument,
         "with the partition 'mod' each of the {} workers needs a lane, but there are {}: give --lanes {} or "
         "more, or take 'size' or 'all'",
         world, lanes, world);
  Ranges ranges;
  for (int rank = 0; rank < world; ++rank)
    split(of_workers[static_cast<size_t>(rank)], static_cast<int>(lanes_of(rank, world, lanes).size()),
          ranges);
  return ranges;
}

// A master reads for all of its workers, and so does each of those that share all.
Partition partition_for(const Context& context, Partition asked) {
  return asked == Partition::Mod && context.flags().strategy == "in-graph" ? Partition::Size : asked;
}

}  // namespace

Partition parse_partition(const std::string& text) {
  if (text == "mod") return Partition::Mod;
  if (text == "size") return Partition::Size;
  if (text == "all") return Partition::All;
  fail(ErrorKind::InvalidArgument, "no partition '{}': there are mod, size and all", text);
}

Feed distributed_feed(const Context& context, const std::string& root, const Schema& schema,
                      const DistributedFeedOptions& options) {
  const Partition partition = partition_for(context, options.partition);
  std::vector<std::string> shards = shards_in(root);
  TableSourceOptions how{.master_table = options.master_table, .memory = options.memory, .rows = {}};
  if (partition == Partition::All) return Feed(table_source(shards, schema, how));
  std::vector<size_t> shards_of_each;
  if (partition == Partition::Mod) {
    if (static_cast<size_t>(context.world()) > shards.size())
      fail(ErrorKind::InvalidArgument,
           "{}: {} shards for {} workers: with the partition 'mod' each needs one of its own. Start {} or "
           "fewer, make more with `tutti shard`, or take 'size', which splits shards, or 'all'",
           root, shards.size(), context.world(), shards.size());
    shards = by_worker(shards, context.world(), shards_of_each);
  }
  const std::string master =
      options.master_table.empty() ? schema.tables().front().first : options.master_table;
  for (const std::string& shard : shards)
    how.rows.push_back(rows_of(path_in(shard, master, schema[master]), schema[master].format));
  const Feed feed(table_source(shards, schema, how));
  if (partition == Partition::Size)
    return feed.deal([size = feed.size()](int64_t lanes) { return split_among_lanes(size, lanes); });
  Ranges of_workers;
  auto rows = how.rows.begin();
  int64_t begin = 0;
  for (const size_t count : shards_of_each) {
    const int64_t end = std::accumulate(rows, rows + static_cast<ptrdiff_t>(count), begin);
    rows += static_cast<ptrdiff_t>(count);
    of_workers.push_back({begin, end});
    begin = end;
  }
  return feed.deal([of_workers](int64_t lanes) { return split_among_workers(of_workers, lanes); });
}

}  // namespace tutti::data
