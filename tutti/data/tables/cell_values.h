#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tutti/data/tables/schema.h"

namespace tutti::data {

// The values of cells as the schema describes them. Problems are InvalidArguments that say what is wrong with
// the text; the caller adds where it is.

// Sets `value` to the value of a missing cell: NaN, or CellType::missing. Returns false if the type has none.
bool set_missing(const CellType& cells, float& value);
bool set_missing(const CellType& cells, int64_t& value);
// The text of an error about a missing cell whose type has no value for it.
std::string_view must_not_be_missing();

// Reads a cell, which has no surrounding blanks.
void read_cell(std::string_view cell, const TextFormat& format, const CellType& cells, float& value);
void read_cell(std::string_view cell, const TextFormat& format, const CellType& cells, int64_t& value);

// Appends the values of a list and checks it.
void append_list(std::string_view cell, const TextFormat& format, const TableKind& kind,
                 std::vector<float>& values);
void append_list(std::string_view cell, const TextFormat& format, const TableKind& kind,
                 std::vector<int64_t>& values);

// Throws unless the list is valid for the kind.
void require_list(const TableKind& kind, std::span<const float> list);
void require_list(const TableKind& kind, std::span<const int64_t> list);

// Numbers are read as the nearest float32. If a whole number, such as an index or a time, is not exact as a
// float32, require_exact() throws. Only numbers for which may_be_rounded() is true need this check.
inline bool may_be_rounded(float number) {
  constexpr float kExactUpTo = 1 << 24;
  return std::abs(number) >= kExactUpTo;
}
void require_exact(std::string_view text, float number);

}  // namespace tutti::data
