#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/data/tables/rows.h"
#include "tutti/data/tables/schema.h"
#include "tutti/data/tables/table.h"

namespace tutti::data {

// A table stored as text. Errors in it name the line.
class TextTable final : public Table {
 public:
  TextTable(const std::string& path, const TextFormat& format, const TableKind& kind = {},
            BadRows bad = BadRows::Error);

  std::string id(int64_t row) const override;
  int64_t rows_in_file() const override { return rows_->size() - (format_.header ? 1 : 0); }

  // Return a row, or the one with the columns' names if there is one, as it is written. Stored in `buffer`.
  std::string_view text(int64_t row, std::string& buffer) const;
  std::string_view header(std::string& buffer) const;

  using Table::read;
  void read(int64_t begin, int64_t end, float* numbers, std::string& buffer) const override;
  void read_lists(int64_t row, std::vector<float>& numbers, std::vector<int64_t>& lengths,
                  std::string& buffer) const override;

 private:
  using TakeCell = std::function<void(size_t column, std::string_view cell)>;

  void read_header(const Rows::Row& row);
  void add_row(const Rows::Row& row);
  bool is_good(const Rows::Row& row);
  std::string id_in(const Rows::Row& row) const;
  std::string require_id(const Rows::Row& row) const;
  Rows::Row row_at(int64_t row, std::string& buffer) const;
  void read_dense(const Rows::Row& row, float* numbers) const;
  bool read_fast(std::string_view text, float* numbers) const;
  void read_carefully(const Rows::Row& row, float* numbers) const;
  void read_lists_of(const Rows::Row& row, std::vector<float>& numbers, std::vector<int64_t>& lengths) const;
  void read_cells(const Rows::Row& row, const TakeCell& take) const;
  [[noreturn]] void fail_twice(const IdIndex::Twice& rows) const override;
  [[noreturn]] void fail_at(const Rows::Row& row, const std::string& what) const;

  const TextFormat format_;
  const BadRows bad_;
  size_t id_at_ = 0;  // index of the ID column
  bool has_columns_ = false;
  std::vector<int64_t> shifts_;  // for each row left out, the number of kept rows before it
  std::optional<Rows> rows_;     // set once all rows have been read
};

}  // namespace tutti::data
