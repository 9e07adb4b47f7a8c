#include "tutti/data/tables/row_reader.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/data/tables/cell_values.h"
#include "tutti/data/tables/cells.h"

namespace tutti::data {

// The beginning of a cell in a row without quotes.
struct RowReader::Cursor {
  const char* at;
  const char* end;
  char separator;
  bool done = false;  // the last cell was read

  const char* end_of_cell() const {
    const void* found = std::memchr(at, separator, static_cast<size_t>(end - at));
    return found == nullptr ? end : static_cast<const char*>(found);
  }
  // Goes from the end of a cell to the next one.
  void go_on(const char* cell_end) {
    done = cell_end == end;
    at = done ? end : cell_end + 1;
  }
  bool skip(size_t cells) {
    for (; cells > 0 && !done; --cells) go_on(end_of_cell());
    return cells == 0;
  }
};

RowReader::RowReader(const TextFormat& format, std::vector<std::string> names, std::vector<TableKind> kinds,
                     const std::vector<std::vector<size_t>>& columns)
    : format_(format), names_(std::move(names)), kinds_(std::move(kinds)), targets_(names_.size()) {
  for (size_t view = 0; view < columns.size(); ++view) {
    for (size_t place = 0; place < columns[view].size(); ++place)
      targets_[columns[view][place]].push_back({view, place});
  }
  plan(columns);
}

// Puts each view into the first pass in which no other view has its columns.
void RowReader::plan(const std::vector<std::vector<size_t>>& columns) {
  std::vector<std::vector<std::optional<Target>>> passes;
  for (size_t view = 0; view < columns.size(); ++view) {
    const auto has_room = [&](const auto& pass) {
      return std::none_of(columns[view].begin(), columns[view].end(),
                          [&](size_t column) { return pass[column].has_value(); });
    };
    auto pass = std::find_if(passes.begin(), passes.end(), has_room);
    if (pass == passes.end()) pass = passes.insert(pass, std::vector<std::optional<Target>>(names_.size()));
    for (size_t place = 0; place < columns[view].size(); ++place)
      (*pass)[columns[view][place]] = Target{view, place};
  }
  const auto how = [&](const std::optional<Target>& target) {
    if (!target) return Run::How::Skip;
    const TableKind& kind = kinds_[target->view];
    const bool is_number = kind.is_dense() && kind.cells.is != CellType::Is::Category;
    return is_number ? Run::How::Numbers : Run::How::Cells;
  };
  for (const auto& targets : passes) {
    Pass& pass = passes_.emplace_back();
    for (const auto& target : targets) {
      const bool goes_on = !pass.empty() && pass.back().how == how(target) &&
                           (!target || (pass.back().first.view == target->view &&
                                        pass.back().first.place + pass.back().columns == target->place));
      if (!goes_on) pass.push_back({how(target), 0, target.value_or(Target{})});
      ++pass.back().columns;
    }
  }
}

void RowReader::read(std::string_view row, std::span<CellBuffer> to) const {
  if (read_fast(row, to)) {
    require_exact_numbers(row, to);
  } else {
    for (CellBuffer& buffer : to) buffer.restart_row();
    read_carefully(row, to);
  }
  for (CellBuffer& buffer : to) buffer.end_rows();
}

// Returns false if the text is not in the common form.
bool RowReader::read_fast(std::string_view row, std::span<CellBuffer> to) const {
  if (format_.quotes && row.find('"') != std::string_view::npos) return false;
  return std::all_of(passes_.begin(), passes_.end(),
                     [&](const Pass& pass) { return read_pass(pass, row, to); });
}

bool RowReader::read_pass(const Pass& pass, std::string_view row, std::span<CellBuffer> to) const {
  Cursor cursor{row.data(), row.data() + row.size(), format_.separator};
  const auto read_run = [&](const Run& run) {
    if (run.how == Run::How::Skip) return cursor.skip(run.columns);
    CellBuffer& buffer = to[run.first.view];
    if (run.how == Run::How::Cells) return read_cells(cursor, run, buffer);
    return with_type_of(buffer.kind().cells,
                        [&](auto zero) { return read_numbers<decltype(zero)>(cursor, run, buffer); });
  };
  return std::all_of(pass.begin(), pass.end(), read_run) && cursor.done;
}

template <class Number>
bool RowReader::read_numbers(Cursor& cursor, const Run& run, CellBuffer& to) const {
  Number* number = to.row<Number>() + run.first.place;
  Number* const last = number + run.columns;
  for (; number != last; ++number) {
    if (cursor.done) return false;
    auto [behind, error] = std::from_chars(cursor.at, cursor.end, *number);
    if (error != std::errc() || (behind != cursor.end && *behind != cursor.separator)) {
      behind = cursor.end_of_cell();
      const std::string_view cell(cursor.at, static_cast<size_t>(behind - cursor.at));
      if (!is_missing(cell, format_) || !set_missing(to.kind().cells, *number)) return false;
    }
    cursor.go_on(behind);
  }
  return true;
}

// An error is reported by read_carefully(), with the name of its column.
bool RowReader::read_cells(Cursor& cursor, const Run& run, CellBuffer& to) const {
  for (size_t i = 0; i < run.columns; ++i) {
    if (cursor.done) return false;
    const char* const behind = cursor.end_of_cell();
    try {
      append_cell(trimmed({cursor.at, static_cast<size_t>(behind - cursor.at)}), run.first.place + i, to);
    } catch (const Error&) {
      return false;
    }
    cursor.go_on(behind);
  }
  return true;
}

void RowReader::append_cell(std::string_view cell, size_t place, CellBuffer& to) const {
  with_type_of(to.kind().cells, [&](auto zero) {
    using Value = decltype(zero);
    if (to.kind().is_dense()) {
      read_cell(cell, format_, to.kind().cells, to.row<Value>()[place]);
    } else {
      std::vector<Value>& values = to.values<Value>();
      const size_t begin = values.size();
      append_list(cell, format_, to.kind(), values);
      to.add_list(place, begin, static_cast<int64_t>(values.size() - begin));
    }
  });
}

void RowReader::read_carefully(std::string_view row, std::span<CellBuffer> to) const {
  each_cell(row, [&](size_t column, std::string_view cell) {
    for (const Target& target : targets_[column]) append_cell(cell, target.place, to[target.view]);
  });
}

// Checks the numbers that read_numbers() has read.
void RowReader::require_exact_numbers(std::string_view row, std::span<CellBuffer> to) const {
  const auto has_large = [](CellBuffer& buffer) {
    if (!buffer.kind().is_dense() || !buffer.kind().cells.is_float()) return false;
    const float* const numbers = buffer.row<float>();
    // A lambda, since a call of a function for each number would not be inlined.
    return std::any_of(numbers, numbers + buffer.columns(),
                       [](float number) { return may_be_rounded(number); });
  };
  if (std::none_of(to.begin(), to.end(), has_large)) return;
  each_cell(row, [&](size_t column, std::string_view cell) {
    for (const Target& target : targets_[column]) {
      const TableKind& kind = kinds_[target.view];
      if (kind.is_dense() && kind.cells.is_float())
        require_exact(cell, to[target.view].row<float>()[target.place]);
    }
  });
}

void RowReader::each_cell(std::string_view row, const OnCell& on_cell) const {
  Cells cells(row, format_);
  size_t column = 0;
  for (; const auto cell = cells.next(); ++column) {
    if (column >= names_.size()) continue;
    try {
      on_cell(column, trimmed(*cell));
    } catch (const Error& error) {
      fail(ErrorKind::InvalidArgument, "column '{}' ({}): {}", names_[column], column + 1, error.what());
    }
  }
  if (column != names_.size())
    fail(ErrorKind::InvalidArgument, "the row has {} cells; expected {}, as in the {}", column, names_.size(),
         format_.header ? "header" : "first row");
}

}  // namespace tutti::data
