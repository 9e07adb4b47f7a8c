#include <fmt/format.h>

#include "tools/arguments.h"
#include "tools/commands.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/data/tables/shard_tables.h"

namespace tutti {

int shard_command(const std::vector<std::string>& arguments, const Environment&) {
  CLI::App app(
      "Cuts tables into shards, all alike: each shard is a folder with the same files, every ID is in one of "
      "them.",
      "tutti shard");
  std::vector<std::string> inputs;
  std::string by = "rows";
  std::string out;
  std::string id;
  bool no_header = false;
  data::ShardOptions options;
  app.add_option("INPUT", inputs, "Tables, .tsv or .csv; the first says in which order IDs are cut")
      ->required();
  app.add_option("-n,--shards", options.shards, "How many")->required();
  app.add_option("--by", by, "What each has equally much of: rows or bytes")->capture_default_str();
  app.add_option("--out", out, "The folder for them: a new or an empty one")->required();
  app.add_option("--id", id, "The column that has the IDs, in all tables; the first where this is not given");
  app.add_flag("--no-header", no_header, "The tables have no row with names");
  if (!parse_arguments(app, arguments)) return 0;
  if (by != "rows" && by != "bytes")
    fail(ErrorKind::InvalidArgument, "--by {}: there are rows and bytes", by);
  if (by == "bytes") options.by = data::ShardOptions::By::Bytes;
  std::vector<data::TableFile> tables;
  for (const std::string& input : inputs) {
    data::TextFormat format = data::format_of(input);
    format.id = id;
    format.header = !no_header;
    tables.emplace_back(input, format);
  }
  for (const data::CutShard& shard : data::shard_tables(tables, out, options))
    fmt::print("{}: {} rows, {}\n", shard.folder, shard.rows, human_bytes(shard.bytes));
  return 0;
}

}  // namespace tutti
