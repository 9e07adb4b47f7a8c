#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tutti::data {

// The text format of a table: one line per row, one cell per column. Lines may end with \r\n; the last one
// needs no end. A byte order mark is skipped.
struct TextFormat {
  char separator = '\t';
  // Cells may be "in quotes", and then contain separators, line ends, and "" for one quote.
  bool quotes = false;
  // The first row has the names of the columns. Otherwise they are named 1, 2, 3, ...
  bool header = true;
  // The column with the ID of the example. Empty: the first.
  std::string id = {};
  // The texts for a missing value, besides an empty cell.
  std::vector<std::string> missing = {"NA", "N/A", "NaN", "nan", "NULL", "null"};
};

inline TextFormat tsv() { return {}; }
inline TextFormat csv() { return {.separator = ',', .quotes = true}; }
// Returns the format for a file's ending: CSV for .csv, else TSV.
inline TextFormat format_of(std::string_view file) { return file.ends_with(".csv") ? csv() : tsv(); }

// Describes what the cells of a table contain, and the tensors that a batch has for them.
struct TableKind {
  enum class Form {
    Dense,    // one number per cell: (rows, columns)
    Ragged,   // lists of numbers: (rows, columns, longest list of the batch), padded with NaN
    Padded,   // like Ragged, but always `size` long; a longer list is an error
    Indices,  // lists of numbers from 0 to `size` - 1: a sparse (rows, size) with 1 at these, else 0
  };
  Form form = Form::Dense;
  int64_t size = 0;
};

inline TableKind dense() { return {}; }
// A list is written as 1 2 3, 1,2,3 or 1;2;3, with or without [brackets] around it. An empty cell is an empty
// list; a cell with a text for missing values is one too.
inline TableKind ragged() { return {TableKind::Form::Ragged}; }
inline TableKind padded(int64_t size) { return {TableKind::Form::Padded, size}; }
inline TableKind indices(int64_t size) { return {TableKind::Form::Indices, size}; }

// How to treat a row with errors.
enum class BadRows { Error, Skip };

// One table of a schema: a file that every shard has, and how it is read. If no format is given, the ending
// of its name decides: .csv is CSV; .parquet is Parquet, for which only the format's `id` is used; .idx,
// -ubyte and these with .gz are IDX (idx.h), whose rows have no IDs and must be in the order of the master
// table; anything else is TSV.
struct TableFile {
  // NOLINTNEXTLINE(google-explicit-constructor): most tables are given as a file alone
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

  // Throws InvalidArgument if there is no table, or a name or a file occurs twice.
  Schema(std::initializer_list<Entry> tables) : Schema(std::vector<Entry>(tables)) {}
  explicit Schema(std::vector<Entry> tables);

  // The tables in the order in which they were given.
  const std::vector<Entry>& tables() const { return tables_; }
  // An unknown name is an InvalidArgument that lists the existing names.
  size_t index_of(const std::string& name) const;
  const TableFile& operator[](const std::string& name) const { return tables_[index_of(name)].second; }

 private:
  std::vector<Entry> tables_;
};

}  // namespace tutti::data
