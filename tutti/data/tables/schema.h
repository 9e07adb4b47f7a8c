#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "tutti/data/tables/table_kind.h"
#include "tutti/data/tables/text_format.h"

namespace tutti::data {

// One table of a schema: a file that every shard has, and how it is read. If no format is given, the ending
// of its name decides: .csv is CSV; .parquet is Parquet (parquet_table.h), for which only the format's `id`
// is used; .idx, -ubyte and these with .gz are IDX (idx.h), whose rows have no IDs and must be in the order
// of the master table; anything else is TSV.
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

// The data that a model needs: tables by name. A folder of shards provides them (shards.h):
//   const Schema schema = {{"desc", {"descriptors.tsv"}}, {"targ", {"targets.tsv"}}};
class Schema {
 public:
  using Entry = std::pair<std::string, TableFile>;

  // Throws InvalidArgument if a name occurs twice or there is no table. A file may occur several times.
  Schema(std::initializer_list<Entry> tables) : Schema(std::vector<Entry>(tables)) {}
  explicit Schema(std::vector<Entry> tables);

  // The tables in the order in which they were given.
  const std::vector<Entry>& tables() const { return tables_; }
  // An unknown name is an InvalidArgument that lists the existing names.
  const TableFile& operator[](const std::string& name) const;

 private:
  std::vector<Entry> tables_;
};

}  // namespace tutti::data
