#pragma once

#include <cstddef>
#include <cstdint>
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

// Parses the number that begins at `at` if it has the common form: for a float, up to 15 digits and an
// exponent of up to two; for a whole number, up to 18 digits. Returns its end, or null if std::from_chars
// must parse it. A float is the nearest one in both cases.
const char* read_common_number(const char* at, const char* end, float& number);
const char* read_common_number(const char* at, const char* end, int64_t& number);

// Parses consecutive numbers of that form, each followed by a separator, up to `most` of them. Returns their
// count; `at` is then after the separator of the last one. A few numbers at the end of the text, and long
// ones, may be left for read_common_number.
size_t read_common_numbers(const char*& at, const char* end, char separator, size_t most, float* numbers);
size_t read_common_numbers(const char*& at, const char* end, char separator, size_t most, int64_t* numbers);

// Like above, but without SIMD instructions. Only tests call them directly.
size_t read_common_numbers_portable(const char*& at, const char* end, char separator, size_t most,
                                    float* numbers);
size_t read_common_numbers_portable(const char*& at, const char* end, char separator, size_t most,
                                    int64_t* numbers);

}  // namespace tutti::data
