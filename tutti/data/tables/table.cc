#include "tutti/data/tables/table.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/data/tables/parquet_table.h"
#include "tutti/data/tables/text_table.h"

namespace tutti::data {
namespace {

// Indices are read as floats, which represent whole numbers up to 2^24 exactly.
void require_index(float index, int64_t size) {
  if (index >= 0 && index < static_cast<float>(size) && index == std::floor(index)) return;
  fail(ErrorKind::InvalidArgument, "{} is not an index from 0 to {}", index, size - 1);
}

}  // namespace

void Table::require_list(const float* numbers, int64_t length) const {
  if (kind_.form == TableKind::Form::Padded && length > kind_.size)
    fail(ErrorKind::InvalidArgument, "the list has {} numbers; the maximum is {}", length, kind_.size);
  if (kind_.form == TableKind::Form::Indices)
    std::for_each(numbers, numbers + length, [&](float index) { require_index(index, kind_.size); });
}

bool is_parquet(std::string_view path) { return path.ends_with(".parquet"); }

std::unique_ptr<Table> open_table(const std::string& path, const TextFormat& format, const TableKind& kind,
                                  BadRows bad) {
  if (is_parquet(path)) return open_parquet(path, format.id, kind, bad);
  return std::make_unique<TextTable>(path, format, kind, bad);
}

std::string not_exact(std::string_view number, float nearest) {
  return fmt::format(
      "tables are read as float32, which cannot represent the whole number {} exactly (the "
      "nearest is {:.0f}); write it as several columns of smaller "
      "numbers, or remove the column",
      number, nearest);
}

std::string shown(std::string_view text) {
  constexpr size_t kMost = 40;
  return text.size() <= kMost ? fmt::format("'{}'", text) : fmt::format("'{}...'", text.substr(0, kMost));
}

}  // namespace tutti::data
