#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/progress.h"
#include "tutti/data/tables/cell_buffer.h"
#include "tutti/data/tables/id_index.h"
#include "tutti/data/tables/schema.h"

namespace tutti::data {

// Some columns of a file, read as one table of a schema.
struct TableView {
  TableKind kind = {};
  // In this order. Empty: all columns but the IDs.
  std::vector<std::string> columns = {};
};

// A file as tables, with one row per example, which is found by its ID or its number. Opening it reads the
// IDs; the cells are read on demand, for all views at once. Thread-safe once opened.
//
// An error in the file is a DataLoss that names file, row, column and ID, and says what was expected. With
// BadRows::Skip such rows are left out instead: then all rows are read when the table is opened.
class Table {
 public:
  virtual ~Table() = default;
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  const std::string& path() const { return path_; }
  bool has_ids() const { return has_ids_; }
  // "" without IDs.
  const std::string& id_column() const { return id_column_; }
  // The names of the columns, without the ID column.
  const std::vector<std::string>& columns() const { return columns_; }
  // The names of all columns, in the order of the file.
  const std::vector<std::string>& all_columns() const { return names_; }
  // The views that were asked for, with the names of their columns.
  const std::vector<TableView>& views() const { return views_; }
  int64_t size() const { return size_; }

  // The number of the row if there are no IDs.
  virtual std::string id(int64_t row) const = 0;
  // Maps IDs to rows.
  const IdIndex& ids() const { return ids_; }

  // The number of rows left out, and the error in one of them.
  struct LeftOut {
    int64_t rows = 0;
    std::string why = {};
  };
  const LeftOut& left_out() const { return left_out_; }
  // The number of rows, including those that were left out, and the place of a row among them.
  virtual int64_t rows_in_file() const = 0;
  int64_t row_in_file(int64_t row) const;

  // Returns the file and, as far as it is known without reading the file, the row's place in it:
  // "data/shard3/users.tsv:7".
  virtual std::string place_of(int64_t row) const = 0;

  // Returns buffers for `rows` rows, one for each view.
  std::vector<CellBuffer> buffers(int64_t rows) const;
  // Appends the cells of consecutive rows to the buffers of the views. A thread may reuse `scratch`.
  virtual void read(int64_t begin, int64_t end, std::span<CellBuffer> to, std::string& scratch) const = 0;

 protected:
  Table(std::string path, std::vector<TableView> views) : path_(std::move(path)), views_(std::move(views)) {}
  // Sets the names of the columns, and finds the column with the IDs, if there is one, and the columns of the
  // views. Errors begin with `where`.
  void set_columns(std::vector<std::string> names, const TextFormat& format, const std::string& where);
  // Returns why the text cannot be an ID, or "".
  static std::string problem_of_id(std::string_view id);
  // Every row of the file is either added or skipped, in order.
  void add_row() { ++size_; }
  void add_row(std::string_view id) {
    ids_.add(id);
    ++size_;
  }
  void skip_row() { skipped_.push_back(size_); }
  void leave_out(const std::string& why) {
    if (left_out_.rows++ == 0) left_out_.why = why;
  }
  // Must be called after all rows have been added. If an ID occurs twice, calls fail_twice(), or leaves the
  // later row out.
  void finish_rows(BadRows bad);
  [[noreturn]] virtual void fail_twice(const IdIndex::Twice& rows) const = 0;
  bool has_skipped() const { return !skipped_.empty(); }

  const std::string path_;
  std::vector<TableView> views_;
  std::vector<std::vector<size_t>> view_columns_;  // of each view, as indices of names_
  std::vector<std::string> names_;                 // of all columns, in the order of the file
  bool has_ids_ = true;
  size_t id_at_ = 0;  // index of the ID column, if there is one

 private:
  std::vector<size_t> columns_of(const TableView& view, const std::string& where) const;

  std::string id_column_;
  std::vector<std::string> columns_;
  IdIndex ids_;
  int64_t size_ = 0;
  std::vector<int64_t> skipped_;  // for each row that was skipped, the number of added rows before it
  LeftOut left_out_;
};

// Returns for each row of `table` the row of `other` that belongs to it: the one with the same ID or, if one
// of them has no IDs, the one at the same place. Throws a DataLoss that names an ID which only one of them
// has, or says that their numbers of rows differ.
std::vector<int64_t> matching_rows(const Table& table, const Table& other);

// Returns the index of each wanted column among `names`. Throws a DataLoss that begins with `where` and names
// one that is not there.
std::vector<size_t> find_columns(const std::vector<std::string>& wanted,
                                 const std::vector<std::string>& names, const std::string& where);

bool is_parquet(std::string_view path);

// Opens a table by its ending: .parquet, else text in that format. Without views only its IDs can be read.
// Tells how many bytes of the file were looked through, which are all of them in the end.
std::unique_ptr<Table> open_table(const std::string& path, const TextFormat& format,
                                  const std::vector<TableView>& views, BadRows bad = BadRows::Error,
                                  const OnBytes& on_bytes = {});

// The text of an error about a whole number that is not exact as a float32.
std::string not_exact(std::string_view number, float nearest);

// Returns an ID or a cell for an error message, shortened to fit into a line.
std::string shown(std::string_view text);

// A table stored as Parquet. Its IDs are texts or whole numbers. The other columns hold numbers or, as the
// kinds of the views say, lists of numbers, texts, or lists of texts. Nulls are missing values.
//
// To read one row of Parquet, a part of typically 100,000 rows or more must be unpacked. Therefore parts that
// were read once are kept unpacked, in an unnamed file in TMPDIR or else /var/tmp.
//
// Throws Unimplemented in a build without Arrow.
std::unique_ptr<Table> open_parquet(const std::string& path, const TextFormat& format,
                                    const std::vector<TableView>& views, BadRows bad,
                                    const OnBytes& on_bytes = {});

// Calls `visit` with all cells of a Parquet file as texts, and with each element of a list; "" for null.
using VisitText = std::function<void(size_t column, std::string_view text)>;
void each_parquet_text(const std::string& path, const VisitText& visit);

}  // namespace tutti::data
