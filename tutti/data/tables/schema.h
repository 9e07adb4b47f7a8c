#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "tutti/data/tables/table_kind.h"
#include "tutti/data/tables/text_format.h"

namespace tutti::data {

// One table of a schema: a file that every shard has, and how it is read; as its name ends where that is not
// said: .csv as CSV; .parquet as Parquet (parquet_table.h), for which only the format's `id` matters; .idx,
// -ubyte and the same with .gz as IDX (idx.h), whose rows have no IDs and are those of the master table in
// its order; else as TSV.
struct TableFile {
  // NOLINTNEXTLINE(google-explicit-constructor): a file alone is how most are said
  TableFile(std::string name, TableKind what = {})
      : file(std::move(name)), format(format_of(file)), kind(what) {}
  TableFile(std::string name, TextFormat how, TableKind what = {})
      : file(std::move(name)), format(std::move(how)), kind(what) {}

  bool is_idx() const;

  std::string file;
  TextFormat format;
  TableKind kind;
};

// What a model needs to know of its data: tables by name. A folder of shards answers it (shards.h):
//   const Schema schema = {{"desc", {"descriptors.tsv"}}, {"targ", {"targets.tsv"}}};
class Schema {
 public:
  using Entry = std::pair<std::string, TableFile>;

  // Every name may occur once, every file may; there has to be a table: else InvalidArgument.
  Schema(std::initializer_list<Entry> tables) : Schema(std::vector<Entry>(tables)) {}
  explicit Schema(std::vector<Entry> tables);

  // In the order in which they were given.
  const std::vector<Entry>& tables() const { return tables_; }
  // An InvalidArgument lists the names that there are.
  const TableFile& operator[](const std::string& name) const;

 private:
  std::vector<Entry> tables_;
};

}  // namespace tutti::data
