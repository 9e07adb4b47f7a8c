#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tutti/data/tables/text_format.h"

namespace tutti::data {

// The cells of a row, one after the other. Not thread-safe.
class Cells {
 public:
  Cells(std::string_view row, const TextFormat& format) : rest_(row), format_(format) {}

  // Nothing after the last. A cell in quotes comes without them; it is valid until the next one. Where
  // something follows a closing quote, or a quote is not closed: InvalidArgument that says so.
  std::optional<std::string_view> next();

 private:
  std::string_view quoted();

  std::string_view rest_;
  const TextFormat& format_;
  std::string unquoted_;
  bool done_ = false;
};

// Whether it stands for a value that nobody knows.
bool is_missing(std::string_view cell, const TextFormat& format);

// Blanks around it count for nothing.
std::string_view trimmed(std::string_view text);

bool is_utf8(std::string_view text);

}  // namespace tutti::data
