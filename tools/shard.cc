#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tools/arguments.h"
#include "tools/commands.h"
#include "tutti/base/error.h"
#include "tutti/base/live_line.h"
#include "tutti/base/text.h"
#include "tutti/data/tables/shards.h"

namespace tutti {

int shard_command(const std::vector<std::string>& arguments, const Environment&) {
  CLI::App app(
      "Splits tables into shards. Each shard is a folder with one part of every table; all rows of an ID "
      "are in the same shard.",
      "tutti shard");
  std::vector<std::string> inputs;
  std::string by = "rows";
  std::string out;
  std::string id;
  bool no_header = false;
  bool no_ids = false;
  data::ShardOptions options;
  app.add_option("INPUT", inputs, "Tables, .tsv or .csv; the shards follow the order of the first one")
      ->required();
  app.add_option("-n,--shards", options.shards, "Number of shards")->required();
  app.add_option("--by", by, "Give the shards equal numbers of rows or of bytes: rows or bytes")
      ->capture_default_str();
  app.add_option("--out", out, "Folder for the shards, which must be new or empty")->required();
  auto* const has_id =
      app.add_option("--id", id, "Name of the column of IDs in all tables (default: the first column)");
  app.add_flag("--no-ids", no_ids,
               "The tables have no column of IDs; rows with the same number belong together")
      ->excludes(has_id);
  app.add_flag("--no-header", no_header, "The tables do not begin with a row of column names");
  if (!parse_arguments(app, arguments)) return 0;
  if (by != "rows" && by != "bytes") fail(ErrorKind::InvalidArgument, "--by {}: expected rows or bytes", by);
  if (by == "bytes") options.by = data::ShardOptions::By::Bytes;
  std::vector<data::TableFile> tables;
  for (const std::string& input : inputs) {
    data::TextFormat format = data::format_of(input);
    format.id = id;
    format.ids = no_ids ? data::Ids::RowNumbers : data::Ids::Column;
    format.header = !no_header;
    tables.emplace_back(input, format);
  }
  const std::vector<data::CutShard> shards = [&] {
    LiveLine line(kLogAuto);
    std::optional<Meter> reading(std::in_place, line, "reading", Meter::Unit::Bytes);
    Meter writing(line, "rows");
    options.reading = reading->teller();
    options.writing = [&](int64_t written, int64_t all) {
      reading.reset();
      writing.at(written, all);
    };
    return data::shard_tables(tables, out, options);
  }();
  for (const data::CutShard& shard : shards)
    fmt::print("{}: {} rows, {}\n", shard.folder, shard.rows, human_bytes(shard.bytes));
  return 0;
}

}  // namespace tutti
