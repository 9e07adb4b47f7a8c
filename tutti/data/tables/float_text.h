#pragma once

#include <cstddef>

namespace tutti::data {

// Parses the number that begins at `at` if it has the common form: up to 15 digits, an exponent of up to two.
// Returns its end, or null if std::from_chars must parse it. The float is the nearest one in both cases.
const char* read_common_float(const char* at, const char* end, float& number);

// Parses consecutive numbers of that form, each followed by a separator, up to `most` of them. Returns their
// count; `at` is then after the separator of the last one. A few numbers at the end of the text may be left
// for read_common_float.
size_t read_common_floats(const char*& at, const char* end, char separator, size_t most, float* numbers);

// Like above, but without SIMD instructions. Only tests call it directly.
size_t read_common_floats_portable(const char*& at, const char* end, char separator, size_t most,
                                   float* numbers);

}  // namespace tutti::data
