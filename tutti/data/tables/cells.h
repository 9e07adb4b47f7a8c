#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tutti/data/tables/schema.h"

namespace tutti::data {

// Splits a row into its cells. Not thread-safe.
class Cells {
 public:
  Cells(std::string_view row, const TextFormat& format) : rest_(row), format_(format) {}

  // Returns nullopt after the last cell. A quoted cell is returned without its quotes and is valid until the
  // next call. Throws InvalidArgument if text follows a closing quote, or a quote is not closed.
  std::optional<std::string_view> next();

 private:
  std::string_view quoted();

  std::string_view rest_;
  const TextFormat& format_;
  std::string unquoted_;
  bool done_ = false;
};

// Returns true if the cell stands for an unknown value.
bool is_missing(std::string_view cell, const TextFormat& format);

// Returns the text without surrounding blanks.
std::string_view trimmed(std::string_view text);

bool is_utf8(std::string_view text);

}  // namespace tutti::data
