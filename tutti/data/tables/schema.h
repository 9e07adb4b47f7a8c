#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tutti::data {

// How a row is found.
enum class Ids {
  Column,      // by its ID, which is in a column
  RowNumbers,  // by its number: all files of a shard have the same number of rows, in the same order
};

// The text format of a table: one line per row, one cell per column. Lines may end with \r\n; the last one
// needs no end. A byte order mark is skipped.
struct TextFormat {
  char separator = '\t';
  // Cells may be "in quotes", and then contain separators, line ends, and "" for one quote.
  bool quotes = false;
  // The first row has the names of the columns. Otherwise they are named 1, 2, 3, ...
  bool header = true;
  // RowNumbers: no column has IDs.
  Ids ids = Ids::Column;
  // The column with the ID of the example. Empty: the first.
  std::string id = {};
  // The texts for a missing value, besides an empty cell.
  std::vector<std::string> missing = {"NA", "N/A", "NaN", "nan", "NULL", "null"};

  bool operator==(const TextFormat&) const = default;
};

inline TextFormat tsv() { return {}; }
inline TextFormat csv() { return {.separator = ',', .quotes = true}; }
// Returns the format for a file's ending: CSV for .csv, else TSV.
inline TextFormat format_of(std::string_view file) { return file.ends_with(".csv") ? csv() : tsv(); }

// Describes the values in the cells of a table, or in their lists, and the type of its tensors.
struct CellType {
  // The type of the values.
  enum class Is {
    Float32,   // numbers, as the nearest float32; a whole number that is not exact is an error
    Int64,     // whole numbers, which are exact
    Category,  // texts, which become int64 numbers from 0 to `buckets` - 1
  };
  Is is = Is::Float32;
  int64_t buckets = 0;
  // For Int64 and Category, the value of a missing one. Empty: it is an error. A missing float32 is NaN.
  std::optional<int64_t> missing = {};

  bool is_float() const { return is == Is::Float32; }
  bool operator==(const CellType&) const = default;
};

// Options of int64().
struct Int64Options {
  // The value of a missing number. Empty: a missing number is an error.
  std::optional<int64_t> missing = {};
};
// Options of categories().
struct CategoryOptions {
  // The value of a missing text: -1 is "no id" for embeddings. To give it a row of its own, make this the
  // number of buckets, and the embedding one row longer.
  int64_t missing = -1;
};

inline CellType float32() { return {}; }
inline CellType int64(const Int64Options& options = {}) {
  return {.is = CellType::Is::Int64, .missing = options.missing};
}
// Texts, such as names, each as the number of its bucket (bucket_of). Different texts may share a bucket.
inline CellType categories(int64_t buckets, const CategoryOptions& options = {}) {
  return {CellType::Is::Category, buckets, options.missing};
}
// Returns the bucket of a text without surrounding blanks: its XXH64 with seed 0, modulo the number of
// buckets. This never changes.
int64_t bucket_of(std::string_view text, int64_t buckets);
// Returns "float32", "int64, missing -1" or "categories(100), missing -1".
std::string text_of(const CellType& cells);

// Describes what the cells of a table contain, and the tensors that a batch has for them.
struct TableKind {
  // The number of values in a cell, and the shape of the tensor.
  enum class Form {
    Dense,    // one value per cell: (rows, columns)
    Ragged,   // lists of values: (rows, columns, longest list of the batch), padded with NaN or -1
    Padded,   // like Ragged, but always `size` long; a longer list is an error
    Indices,  // lists of numbers from 0 to `size` - 1: a sparse (rows, size) with 1 at these, else 0
  };

  TableKind() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): int64() is a table with one integer per cell
  TableKind(const CellType& what) : cells(what) {}
  TableKind(Form how, int64_t length, const CellType& what) : form(how), size(length), cells(what) {}

  bool is_dense() const { return form == Form::Dense; }

  Form form = Form::Dense;
  int64_t size = 0;
  CellType cells = {};
};

// {"ratings.tsv", int64()} is short for {"ratings.tsv", dense(int64())}.
inline TableKind dense(const CellType& cells = {}) { return cells; }
// A list is written as 1 2 3, 1,2,3, 1;2;3 or 1|2|3, with or without [brackets] around it. An empty cell is
// an empty list. A cell with a text for missing values is one missing number in lists of float32, else an
// empty list.
inline TableKind ragged(const CellType& cells = {}) { return {TableKind::Form::Ragged, 0, cells}; }
inline TableKind padded(int64_t size, const CellType& cells = {}) {
  return {TableKind::Form::Padded, size, cells};
}
// Missing indices are left out.
inline TableKind indices(int64_t size) { return {TableKind::Form::Indices, size, int64({.missing = -1})}; }

// How to treat a row with errors.
enum class BadRows { Error, Skip };

// The names of numbered columns, as files without a header have them: numbered(2, 4) is {"2", "3", "4"}.
std::vector<std::string> numbered(int64_t first, int64_t last);

// One table of a schema: some columns of a file that every shard has, and how they are read. If no format is
// given, the ending of its name decides: .csv is CSV; .parquet is Parquet, for which only the format's `id`,
// `ids` and, for categories, `missing` are used; .idx, -ubyte and these with .gz are IDX (idx.h), whose rows
// have no IDs and must be in the order of the master table; anything else is TSV.
struct TableFile {
  // The columns of the table, in this order. Empty: all columns but the IDs.
  // NOLINTNEXTLINE(google-explicit-constructor): most tables are given as a file alone
  TableFile(std::string name, TableKind what = {}, std::vector<std::string> which = {})
      : file(std::move(name)), format(format_of(file)), kind(what), columns(std::move(which)) {}
  TableFile(std::string name, TextFormat how, TableKind what = {}, std::vector<std::string> which = {})
      : file(std::move(name)), format(std::move(how)), kind(what), columns(std::move(which)) {}

  bool is_idx() const;

  std::string file;
  TextFormat format;
  TableKind kind;
  std::vector<std::string> columns;
};

// The data that a model needs: tables by name. A folder of shards provides them (shards.h):
//   const Schema schema = {{"desc", {"descriptors.tsv"}}, {"targ", {"targets.tsv"}}};
// Several tables may be made of one file, which is then read once for all of them:
//   const Schema schema = {{"rating", {"ratings.csv", float32(), {"stars"}}},
//                          {"film", {"ratings.csv", int64(), {"film"}}}};
class Schema {
 public:
  using Entry = std::pair<std::string, TableFile>;

  // Throws InvalidArgument if there is no table, a name occurs twice, or tables read the same file in
  // different formats.
  Schema(std::initializer_list<Entry> tables) : Schema(std::vector<Entry>(tables)) {}
  explicit Schema(std::vector<Entry> tables);

  // The tables in the order in which they were given.
  const std::vector<Entry>& tables() const { return tables_; }
  // An unknown name is an InvalidArgument that lists the existing names.
  size_t index_of(const std::string& name) const;
  const TableFile& operator[](const std::string& name) const { return tables_[index_of(name)].second; }

  // The files, in the order in which the tables name them first, each with the indices of its tables.
  const std::vector<std::vector<size_t>>& files() const { return files_; }

 private:
  void add_to_files(size_t table);

  std::vector<Entry> tables_;
  std::vector<std::vector<size_t>> files_;
};

}  // namespace tutti::data
