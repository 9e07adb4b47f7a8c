#include "tutti/data/tables/table_feed.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/live_line.h"
#include "tutti/data/tables/shards.h"
#include "tutti/data/tables/table_facts.h"
#include "tutti/data/tables/table_source.h"
#include "tutti/lanes/lanes.h"

namespace tutti::data {
namespace {

using Ranges = std::vector<ExampleRange>;

constexpr const char* kReading = "reading tables";  // in the live line

// Splits a range into consecutive parts of nearly equal size.
void split(const ExampleRange& all, int parts, Ranges& into) {
  const auto shares =
      parts > 0 && all.size() > 0 ? lanes_of_all(parts, all.size()) : std::vector<LaneRange>();
  for (int part = 0; part < parts; ++part) {
    const LaneRange share = shares.empty() ? LaneRange{} : shares[static_cast<size_t>(part)];
    into.push_back({all.begin + share.begin, all.begin + share.end});
  }
}

Ranges split_among_lanes(int64_t lanes, int64_t examples) {
  Ranges ranges;
  split({0, examples}, static_cast<int>(lanes), ranges);
  return ranges;
}

// Returns the shards ordered by the worker that reads them.
std::vector<std::string> by_worker(const std::vector<std::string>& shards, size_t world) {
  std::vector<std::string> ordered;
  for (size_t rank = 0; rank < world; ++rank) {
    for (size_t i = rank; i < shards.size(); i += world) ordered.push_back(shards[i]);
  }
  return ordered;
}

// Splits the examples of each worker among its lanes.
Ranges split_among_workers(const Ranges& of_workers, int64_t lanes) {
  const auto world = static_cast<int>(of_workers.size());
  if (lanes < world)
    fail(ErrorKind::InvalidArgument,
         "with the partition 'mod', each of the {} workers needs a lane, but there are only {}: set --lanes "
         "to {} or more, or use the partition 'size' or 'all'",
         world, lanes, world);
  Ranges ranges;
  for (int rank = 0; rank < world; ++rank)
    split(of_workers[static_cast<size_t>(rank)], static_cast<int>(lanes_of(rank, world, lanes).size()),
          ranges);
  return ranges;
}

// Takes the numbers of rows of the shards in the order of by_worker().
Feed::Deal deal_to_workers(const std::vector<int64_t>& rows, size_t world) {
  Ranges of_workers;
  size_t shard = 0;
  int64_t begin = 0;
  for (size_t rank = 0; rank < world; ++rank) {
    int64_t end = begin;
    for (size_t i = rank; i < rows.size(); i += world) end += rows[shard++];
    of_workers.push_back({begin, end});
    begin = end;
  }
  return [of_workers](int64_t lanes, int64_t examples) {
    if (examples != of_workers.back().end)
      fail(ErrorKind::InvalidArgument,
           "take(), skip() and split() cannot be used with the partition 'mod', because each worker has its "
           "own part of the examples: use the partition 'size' or 'all'");
    return split_among_workers(of_workers, lanes);
  };
}

// In the in-graph strategy the master reads for all of its workers.
Partition partition_for(const Context& context, Partition asked) {
  return asked == Partition::Mod && context.config().training.strategy == "in-graph" ? Partition::Size
                                                                                     : asked;
}

// Returns the line of a process that reads tables, before it trains. Only the chief shows one.
LiveLine line_for(const Context& context, bool is_chief) {
  return LiveLine(is_chief ? context.config().output.log : kLogPlain);
}

std::shared_ptr<const TableSource> opened(LiveLine& line, const std::vector<std::string>& shards,
                                          const Schema& schema, TableSourceOptions options) {
  Meter meter(line, kReading, Meter::Unit::Bytes);
  options.on_progress = meter.teller();
  return table_source(shards, schema, options);
}

// Returns the rows of the master table in each shard. Reads the headers of all shards, most of which a worker
// never opens, and checks that none is empty. Workers begin at different shards to share the work.
std::vector<int64_t> look_at(const std::vector<std::string>& shards, const Schema& schema, size_t master,
                             int rank, LiveLine& line) {
  Meter meter(line, "counting rows", Meter::Unit::Bytes);
  const OnBytes on_bytes = counted(meter.teller(), bytes_in(shards, schema));
  std::vector<int64_t> rows(shards.size());
  for (const std::vector<size_t>& tables : schema.files()) {
    const auto& [name, file] = schema.tables()[tables.front()];
    if (file.is_idx()) continue;
    const auto uses_all = [&](size_t table) { return schema.tables()[table].second.columns.empty(); };
    const bool compare_all = std::any_of(tables.begin(), tables.end(), uses_all);
    std::vector<TableColumns> columns(shards.size());
    for (size_t i = 0; i < shards.size(); ++i) {
      const size_t shard = (i + static_cast<size_t>(rank)) % shards.size();
      const std::string path = path_in(shards[shard], name, file);
      TableOutline outline = outline_of(path, file.format, on_bytes);
      if (outline.rows == 0)
        fail(ErrorKind::DataLoss, "{}: the table has no rows; every shard must have at least one", path);
      if (std::count(tables.begin(), tables.end(), master) > 0) rows[shard] = outline.rows;
      std::vector<std::string> all = outline.columns;
      all.push_back(outline.id_column);
      for (const size_t table : tables)
        static_cast<void>(find_columns(schema.tables()[table].second.columns, all, path));
      columns[shard] = {std::move(outline.columns), path};
    }
    for (const TableColumns& own : columns) {
      if (compare_all) require_same_columns(own, columns[0]);
    }
  }
  return rows;
}

Feed feed_of(const Context& context, const Group& group, const std::shared_ptr<const TableSource>& tables,
             Feed::Deal deal) {
  const Source::LeftOut left_out = tables->left_out();
  if (left_out.examples > 0 && group.is_chief())
    context.log().warning("{} examples were skipped (--bad-rows skip) because of bad rows, for example: {}",
                          left_out.examples, left_out.why);
  const Feed feed(tables);
  return deal ? feed.deal(std::move(deal)) : feed;
}

}  // namespace

Partition parse_partition(const std::string& text) {
  if (text == "mod") return Partition::Mod;
  if (text == "size") return Partition::Size;
  if (text == "all") return Partition::All;
  fail(ErrorKind::InvalidArgument, "unknown partition '{}': use mod, size or all", text);
}

Feed table_feed(const Context& context, const std::string& root, const Schema& schema,
                const TableSourceOptions& options) {
  LiveLine line = line_for(context, context.is_chief());
  return Feed(opened(line, shards_in(root), schema, options));
}

Feed distributed_feed(const Context& context, const std::string& root, const Schema& schema,
                      const DistributedFeedOptions& options) {
  const Partition partition = partition_for(context, options.partition);
  const Group group = options.group.value_or(Group::unconnected(context));
  std::vector<std::string> shards = shards_in(root);
  TableSourceOptions how{
      .master_table = options.master_table,
      .memory = options.memory,
      .rows = {},
      .bad_rows = context.config().data.bad_rows == "skip" ? BadRows::Skip : BadRows::Error};
  LiveLine line = line_for(context, group.is_chief());
  if (partition == Partition::All) return feed_of(context, group, opened(line, shards, schema, how), {});
  const auto world = static_cast<size_t>(first_world(context, group));
  if (partition == Partition::Mod) {
    if (world > shards.size())
      fail(ErrorKind::InvalidArgument,
           "{}: there are {} shards for {} workers, but with the partition 'mod' each worker needs its own. "
           "Start {} workers or fewer, make more shards with `tutti shard`, or use the partition 'size', "
           "which splits shards, or 'all'",
           root, shards.size(), group.world, shards.size());
    shards = by_worker(shards, world);
  }
  const size_t master = options.master_table.empty() ? 0 : schema.index_of(options.master_table);
  if (how.bad_rows == BadRows::Error && !schema.tables()[master].second.is_idx())
    how.rows = look_at(shards, schema, master, group.rank, line);
  const auto tables = opened(line, shards, schema, how);
  const Feed::Deal deal = partition == Partition::Size ? Feed::Deal(split_among_lanes)
                                                       : deal_to_workers(tables->rows_of_shards(), world);
  // Opens the shards now, and not in the first step, since the other workers would wait for the batch.
  const bool has_master = context.config().training.strategy == "in-graph" && group.world > 1;
  const bool one_each = context.config().training.lanes == 0;
  const int64_t all_lanes = has_master && one_each ? group.world - 1 : lanes_for(context, group);
  const LaneRange lanes = lanes_of(group.rank, group.world, all_lanes);
  const Ranges ranges = deal(all_lanes, tables->size());
  Meter meter(line, kReading, Meter::Unit::Bytes);
  tables->open({ranges.begin() + lanes.begin, ranges.begin() + lanes.end}, meter.teller());
  return feed_of(context, group, tables, deal);
}

}  // namespace tutti::data
