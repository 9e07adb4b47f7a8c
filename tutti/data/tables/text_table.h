#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/data/tables/id_index.h"
#include "tutti/data/tables/rows.h"
#include "tutti/data/tables/table_kind.h"
#include "tutti/data/tables/text_format.h"

namespace tutti::data {

// A text file as a table of numbers: a row an example, found by its ID. When it is opened its rows and IDs
// are looked through, its numbers are read when they are asked for. Thread-safe.
//
// What is wrong is a DataLoss that names file, line, column and ID, and says what was expected. Or rows that
// are wrong are left out: then all of them are read when it is opened.
class TextTable {
 public:
  TextTable(const std::string& path, const TextFormat& format, const TableKind& kind = {},
            BadRows bad = BadRows::Error);

  const std::string& path() const { return rows_->path(); }
  // Without that of the IDs.
  const std::vector<std::string>& columns() const { return columns_; }
  int64_t size() const { return ids_.size(); }
  bool is_dense() const { return kind_.form == TableKind::Form::Dense; }

  std::string id(int64_t row) const;
  // Which row has which.
  const IdIndex& ids() const { return ids_; }

  // Rows that were left out, and what was wrong with one of them.
  struct LeftOut {
    int64_t rows = 0;
    std::string why = {};
  };
  const LeftOut& left_out() const { return left_out_; }
  // All that it was made of.
  int64_t rows_in_file() const { return rows_->size() - (format_.header ? 1 : 0); }

  // A row as it is written, and the first with the columns' names, where there is one; both in `buffer`.
  std::string_view text(int64_t row, std::string& buffer) const;
  std::string_view header(std::string& buffer) const;

  // A row's numbers, as many as columns; those that are missing are NaN. `buffer` is for one thread to use
  // again.
  void read(int64_t row, float* numbers, std::string& buffer) const { read(row, row + 1, numbers, buffer); }
  // Those of neighbours, one row behind the other.
  void read(int64_t begin, int64_t end, float* numbers, std::string& buffer) const;
  // A row's lists, one behind the other, and how long each is.
  void read_lists(int64_t row, std::vector<float>& numbers, std::vector<int64_t>& lengths,
                  std::string& buffer) const;

 private:
  using TakeCell = std::function<void(size_t column, std::string_view cell)>;

  void read_header(const Rows::Row& row);
  void add_row(const Rows::Row& row);
  bool is_good(const Rows::Row& row);
  void leave_out(const std::string& why);
  void require_no_doubles();
  std::string id_in(const Rows::Row& row) const;
  std::string require_id(const Rows::Row& row) const;
  Rows::Row row_at(int64_t row, std::string& buffer) const;
  bool read_fast(std::string_view text, float* numbers) const;
  void read_carefully(const Rows::Row& row, float* numbers) const;
  void read_lists_of(const Rows::Row& row, std::vector<float>& numbers, std::vector<int64_t>& lengths) const;
  void read_cells(const Rows::Row& row, const TakeCell& take) const;
  [[noreturn]] void fail_at(const Rows::Row& row, const std::string& what) const;

  const TextFormat format_;
  const TableKind kind_;
  const BadRows bad_;
  const std::string file_;  // for people, until rows_ is there
  std::vector<std::string> columns_;
  size_t id_column_ = 0;
  bool has_columns_ = false;
  IdIndex ids_;
  LeftOut left_out_;
  std::vector<int64_t> shifts_;  // of each row left out: how many of those that were not come before it
  std::optional<Rows> rows_;     // last: ids_ and columns_ are filled as it is made
};

}  // namespace tutti::data
