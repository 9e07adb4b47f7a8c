#pragma once

#include <cstddef>

namespace tutti::data {

// The number that begins at `at`, if it is written as most are: up to 15 digits, an exponent of up to two.
// Returns where it ends, or null where std::from_chars has to look. The float is the nearest one, as there.
const char* read_common_float(const char* at, const char* end, float& number);

// Such numbers, each with a separator behind it: as many as there are one after the other, `most` at most.
// Returns how many; `at` is then behind the last one's separator. A few at the text's end may be left for
// read_common_float.
size_t read_common_floats(const char*& at, const char* end, char separator, size_t most, float* numbers);

// The same without the CPU's instructions for it. Only tests call it by name.
size_t read_common_floats_portable(const char*& at, const char* end, char separator, size_t most,
                                   float* numbers);

}  // namespace tutti::data
