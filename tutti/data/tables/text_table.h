#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/data/tables/row_reader.h"
#include "tutti/data/tables/rows.h"
#include "tutti/data/tables/schema.h"
#include "tutti/data/tables/table.h"

namespace tutti::data {

// A table stored as text. Errors in it name the line.
class TextTable final : public Table {
 public:
  TextTable(const std::string& path, const TextFormat& format, const std::vector<TableView>& views,
            BadRows bad = BadRows::Error, const OnBytes& on_bytes = {});

  std::string id(int64_t row) const override;
  std::string place_of(int64_t row) const override;
  int64_t rows_in_file() const override { return rows_->size() - (format_.header ? 1 : 0); }

  // Return a row, or the one with the columns' names if there is one, as it is written. Stored in `buffer`.
  std::string_view text(int64_t row, std::string& buffer) const;
  std::string_view header(std::string& buffer) const;

  void read(int64_t begin, int64_t end, std::span<CellBuffer> to, std::string& scratch) const override;

 private:
  void read_header(const Rows::Row& row);
  void handle_row(const Rows::Row& row);
  bool is_good(const Rows::Row& row);
  std::string id_in(const Rows::Row& row) const;
  std::string require_id(const Rows::Row& row) const;
  Rows::Row row_at(int64_t row, std::string& buffer) const;
  void read_row(const Rows::Row& row, std::span<CellBuffer> to) const;
  [[noreturn]] void fail_twice(const IdIndex::Twice& rows) const override;
  [[noreturn]] void fail_at(const Rows::Row& row, const std::string& what) const;

  const TextFormat format_;
  const BadRows bad_;
  std::optional<RowReader> reader_;  // set once the columns are known
  std::vector<CellBuffer> trial_;    // for BadRows::Skip: one row
  std::optional<Rows> rows_;         // set once all rows have been read
};

}  // namespace tutti::data
