#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/data/tables/id_index.h"
#include "tutti/data/tables/rows.h"
#include "tutti/data/tables/text_format.h"

namespace tutti::data {

// A text file as a table of numbers: a row an example, found by its ID. When it is opened its rows and IDs
// are looked through, its numbers are read when they are asked for. Thread-safe.
//
// What is wrong is a DataLoss that names file, line, column and ID, and says what was expected.
class TextTable {
 public:
  TextTable(const std::string& path, const TextFormat& format);

  const std::string& path() const { return rows_->path(); }
  // Without that of the IDs.
  const std::vector<std::string>& columns() const { return columns_; }
  int64_t size() const { return ids_.size(); }

  std::string id(int64_t row) const;
  // Which row has which.
  const IdIndex& ids() const { return ids_; }

  // A row as it is written, and the first with the columns' names, where there is one; both in `buffer`.
  std::string_view text(int64_t row, std::string& buffer) const;
  std::string_view header(std::string& buffer) const;

  // A row's numbers, as many as columns; those that are missing are NaN. Returns how many bytes of text they
  // were. `buffer` is for one thread to use again.
  void read(int64_t row, float* numbers, std::string& buffer) const;

 private:
  void read_header(const Rows::Row& row);
  void add_row(const Rows::Row& row);
  std::string id_in(const Rows::Row& row) const;
  bool read_fast(std::string_view text, float* numbers) const;
  void read_carefully(const Rows::Row& row, float* numbers) const;
  [[noreturn]] void fail_at(const Rows::Row& row, const std::string& what) const;

  const TextFormat format_;
  const std::string file_;  // for people, until rows_ is there
  std::vector<std::string> columns_;
  size_t id_column_ = 0;
  bool has_columns_ = false;
  IdIndex ids_;
  std::optional<Rows> rows_;  // last: ids_ and columns_ are filled as it is made
};

}  // namespace tutti::data
