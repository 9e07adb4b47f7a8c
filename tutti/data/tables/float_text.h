#pragma once

namespace tutti::data {

// The number that begins at `at`, if it is written as most are: up to 15 digits, an exponent of up to two.
// Returns where it ends, or null where std::from_chars has to look. The float is the nearest one, as there.
const char* read_common_float(const char* at, const char* end, float& number);

}  // namespace tutti::data
