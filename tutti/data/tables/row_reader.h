#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/data/tables/cell_buffer.h"
#include "tutti/data/tables/schema.h"

namespace tutti::data {

// Reads the cells of a text table's rows into buffers, one for each view of the table. Thread-safe.
class RowReader {
 public:
  // `names` are the names of all columns of the file. `columns` has the columns of each view, as indices of
  // `names`.
  RowReader(const TextFormat& format, std::vector<std::string> names, std::vector<TableKind> kinds,
            const std::vector<std::vector<size_t>>& columns);

  // Appends a row. Throws an InvalidArgument that names the column.
  void read(std::string_view row, std::span<CellBuffer> to) const;

 private:
  // The place of a cell in a row of a view.
  struct Target {
    size_t view = 0;
    size_t place = 0;
  };
  // Consecutive columns of the file that are read in the same way, into consecutive places of one view.
  struct Run {
    enum class How { Skip, Numbers, Cells };
    How how = How::Skip;
    size_t columns = 0;
    Target first = {};
  };
  // Runs that cover all columns of the file. Usually there is one pass: more are needed if several views have
  // the same column.
  using Pass = std::vector<Run>;
  struct Cursor;
  using OnCell = std::function<void(size_t column, std::string_view cell)>;

  void plan(const std::vector<std::vector<size_t>>& columns);
  bool read_fast(std::string_view row, std::span<CellBuffer> to) const;
  bool read_pass(const Pass& pass, std::string_view row, std::span<CellBuffer> to) const;
  template <class Number>
  bool read_numbers(Cursor& cursor, const Run& run, CellBuffer& to) const;
  bool read_cells(Cursor& cursor, const Run& run, CellBuffer& to) const;
  void read_carefully(std::string_view row, std::span<CellBuffer> to) const;
  void append_cell(std::string_view cell, size_t place, CellBuffer& to) const;
  void require_exact_numbers(std::string_view row, std::span<CellBuffer> to) const;
  void each_cell(std::string_view row, const OnCell& on_cell) const;

  const TextFormat format_;
  const std::vector<std::string> names_;
  const std::vector<TableKind> kinds_;
  std::vector<std::vector<Target>> targets_;  // of each column of the file
  std::vector<Pass> passes_;
};

}  // namespace tutti::data
