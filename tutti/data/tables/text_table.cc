#include "tutti/data/tables/text_table.h"

#include <utility>

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/data/tables/cells.h"

namespace tutti::data {

TextTable::TextTable(const std::string& path, const TextFormat& format, const std::vector<TableView>& views,
                     BadRows bad, const OnBytes& on_bytes)
    : Table(path, views), format_(format), bad_(bad) {
  if (std::string_view("0123456789+-.eE\"\r\n").find(format.separator) != std::string_view::npos)
    fail(ErrorKind::InvalidArgument, "{}: '{}' cannot be the separator of a table", path, format.separator);
  rows_.emplace(
      path, format.quotes, [this](const Rows::Row& row) { handle_row(row); }, on_bytes);
  if (!reader_)
    fail(ErrorKind::DataLoss, "{}: the file is empty; expected {}", path,
         format.header ? "a row with the columns' names" : "rows");
  finish_rows(bad);
  trial_ = {};
}

void TextTable::fail_twice(const IdIndex::Twice& rows) const {
  std::string buffer;
  const int64_t first_line = row_at(rows.first, buffer).line;
  const Rows::Row row = row_at(rows.second, buffer);
  fail(ErrorKind::DataLoss, "{}:{}: the ID {} already occurs in line {}; IDs must be unique", path_, row.line,
       shown(id_in(row)), first_line);
}

void TextTable::handle_row(const Rows::Row& row) {
  if (!reader_) {
    read_header(row);
    if (format_.header) return;
  }
  if (bad_ == BadRows::Skip && !is_good(row)) return skip_row();
  if (has_ids_) {
    add_row(require_id(row));
  } else {
    add_row();
  }
}

std::string TextTable::require_id(const Rows::Row& row) const {
  std::string id = id_in(row);
  if (const std::string problem = problem_of_id(id); !problem.empty()) fail_at(row, problem);
  return id;
}

bool TextTable::is_good(const Rows::Row& row) {
  try {
    if (has_ids_) static_cast<void>(require_id(row));
    for (CellBuffer& buffer : trial_) buffer.clear();
    read_row(row, trial_);
    return true;
  } catch (const Error& error) {
    leave_out(error.what());
    return false;
  }
}

void TextTable::read_header(const Rows::Row& row) {
  Cells cells(row.text, format_);
  std::vector<std::string> names;
  try {
    while (const auto cell = cells.next()) names.emplace_back(trimmed(*cell));
  } catch (const Error& error) {
    fail(ErrorKind::DataLoss, "{}:{}: {}", path_, row.line, error.what());
  }
  if (!format_.header) names = numbered(1, static_cast<int64_t>(names.size()));
  for (size_t i = 0; i < names.size(); ++i) {
    if (!is_utf8(names[i]))
      fail(ErrorKind::DataLoss, "{}:{}: the name of column {} is not UTF-8", path_, row.line, i + 1);
  }
  set_columns(std::move(names), format_, fmt::format("{}:{}", path_, row.line));
  std::vector<TableKind> kinds;
  for (const TableView& view : views_) kinds.push_back(view.kind);
  reader_.emplace(format_, names_, std::move(kinds), view_columns_);
  if (bad_ == BadRows::Skip) trial_ = buffers(1);
}

std::string TextTable::id_in(const Rows::Row& row) const {
  try {
    Cells cells(row.text, format_);
    for (size_t i = 0;; ++i) {
      const auto cell = cells.next();
      if (!cell)
        fail(ErrorKind::InvalidArgument, "the row has {} cells, but the ID is expected in column {}", i,
             id_at_ + 1);
      if (i == id_at_) return std::string(trimmed(*cell));
    }
  } catch (const Error& error) {
    fail(ErrorKind::DataLoss, "{}:{}: {}", path_, row.line, error.what());
  }
}

void TextTable::fail_at(const Rows::Row& row, const std::string& what) const {
  fail(ErrorKind::DataLoss, "{}:{}: {}", path_, row.line, what);
}

Rows::Row TextTable::row_at(int64_t row, std::string& buffer) const {
  return rows_->read(row_in_file(row) + (format_.header ? 1 : 0), buffer);
}

std::string TextTable::id(int64_t row) const {
  if (!has_ids()) return std::to_string(row_in_file(row));
  std::string buffer;
  return id_in(row_at(row, buffer));
}

std::string TextTable::place_of(int64_t row) const {
  const auto line = rows_->line_of(row_in_file(row) + (format_.header ? 1 : 0));
  return line ? fmt::format("{}:{}", path_, *line) : path_;
}

std::string_view TextTable::text(int64_t row, std::string& buffer) const { return row_at(row, buffer).text; }

std::string_view TextTable::header(std::string& buffer) const { return rows_->read(0, buffer).text; }

void TextTable::read(int64_t begin, int64_t end, std::span<CellBuffer> to, std::string& scratch) const {
  if (has_skipped()) {
    for (int64_t row = begin; row < end; ++row) read_row(row_at(row, scratch), to);
    return;
  }
  const int64_t before = format_.header ? 1 : 0;
  rows_->read(begin + before, end + before, scratch, [&](const Rows::Row& row) { read_row(row, to); });
}

void TextTable::read_row(const Rows::Row& row, std::span<CellBuffer> to) const {
  try {
    reader_->read(row.text, to);
  } catch (const Error& error) {
    const std::string id = has_ids() ? fmt::format("ID {}: ", shown(id_in(row))) : "";
    fail_at(row, id + error.what());
  }
}

}  // namespace tutti::data
