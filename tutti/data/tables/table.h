#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/data/source.h"
#include "tutti/data/tables/id_index.h"
#include "tutti/data/tables/schema.h"

namespace tutti::data {

// A file as a table of numbers, with one row per example, which is found by its ID. Opening it reads the IDs;
// the numbers are read on demand. Thread-safe once opened.
//
// An error in the file is a DataLoss that names file, row, column and ID, and says what was expected. With
// BadRows::Skip such rows are left out instead: then all rows are read when the table is opened.
class Table {
 public:
  virtual ~Table() = default;
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  const std::string& path() const { return path_; }
  const std::string& id_column() const { return id_column_; }
  // The names of the columns, without the ID column.
  const std::vector<std::string>& columns() const { return columns_; }
  int64_t size() const { return ids_.size(); }
  bool is_dense() const { return kind_.form == TableKind::Form::Dense; }

  virtual std::string id(int64_t row) const = 0;
  // Maps IDs to rows.
  const IdIndex& ids() const { return ids_; }

  // The number of rows left out, and the error in one of them.
  struct LeftOut {
    int64_t rows = 0;
    std::string why = {};
  };
  const LeftOut& left_out() const { return left_out_; }
  // The number of rows, including those that were left out.
  virtual int64_t rows_in_file() const = 0;

  // Reads the numbers of consecutive rows, one row after the other, one number per column; missing ones are
  // NaN. A thread may reuse `buffer`.
  virtual void read(int64_t begin, int64_t end, float* numbers, std::string& buffer) const = 0;
  void read(int64_t row, float* numbers, std::string& buffer) const { read(row, row + 1, numbers, buffer); }
  // Reads the lists of a row, one after the other, and their lengths.
  virtual void read_lists(int64_t row, std::vector<float>& numbers, std::vector<int64_t>& lengths,
                          std::string& buffer) const = 0;

 protected:
  Table(std::string path, const TableKind& kind) : path_(std::move(path)), kind_(kind) {}
  void leave_out(const std::string& why) {
    if (left_out_.rows++ == 0) left_out_.why = why;
  }
  // Sets the names of the columns, and returns the index of the one with the IDs: `id`, or the first if `id`
  // is empty. Errors begin with `where`.
  size_t set_columns(std::vector<std::string> names, const std::string& id, const std::string& where);
  // Returns why the text cannot be an ID, or "".
  static std::string problem_of_id(std::string_view id);
  // Must be called once all IDs have been added. If an ID occurs twice, calls fail_twice(), or leaves the
  // later row out.
  void finish_ids(BadRows bad);
  [[noreturn]] virtual void fail_twice(const IdIndex::Twice& rows) const = 0;
  // Throws an InvalidArgument that says what is wrong unless the list is valid for the table's kind.
  void require_list(const float* numbers, int64_t length) const;

  const std::string path_;
  const TableKind kind_;
  std::string id_column_;
  std::vector<std::string> columns_;
  IdIndex ids_;
  LeftOut left_out_;
};

// Returns for each row of `table` the row of `other` with the same ID. Throws a DataLoss that names an ID
// which only one of them has.
std::vector<int64_t> rows_with_same_ids(const Table& table, const Table& other);

bool is_parquet(std::string_view path);

// Opens a table by its ending: .parquet, else text in that format.
std::unique_ptr<Table> open_table(const std::string& path, const TextFormat& format,
                                  const TableKind& kind = {}, BadRows bad = BadRows::Error);

// The text of an error about a whole number that is not exact as a float32, the type of all numbers.
std::string not_exact(std::string_view number, float nearest);

// Returns an ID or a cell for an error message, shortened to fit into a line.
std::string shown(std::string_view text);

// A table stored as Parquet. Its IDs are texts or whole numbers, in the column named `id`, or in the first
// column if `id` is empty; all other columns hold numbers, or lists of numbers if the kind says so. Nulls are
// missing values.
//
// To read one row of Parquet, a part of typically 100,000 rows or more must be unpacked. Therefore parts that
// were read once are kept unpacked, in an unnamed file in TMPDIR or else /var/tmp.
//
// Throws Unimplemented in a build without Arrow.
std::unique_ptr<Table> open_parquet(const std::string& path, const std::string& id, const TableKind& kind,
                                    BadRows bad);

// Facts about the file of a table that can only be found by reading all of it. They are cached next to it in
// .NAME.tutti.json, and are valid as long as the file has the same size and time and is read in the same
// format. If several tasks ask at once, one reads the file and the others wait; if it does not finish in the
// time that this should take, they read it themselves. Nothing is cached in a folder that is not writable.

struct TableOutline {
  int64_t rows = 0;
  std::vector<std::string> columns = {};  // names, without the ID column
};
TableOutline outline_of(const std::string& path, const TextFormat& format, const TableKind& kind = {});

TableStatistics statistics_of(const std::string& path, const TextFormat& format);

}  // namespace tutti::data
