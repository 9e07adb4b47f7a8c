#pragma once

#include <cstddef>
#include <cstdint>

#include <c10/core/ScalarType.h>

namespace tutti::comm {

// Returns the type in which elements of this type are added: float32 for half precision, else the same type.
c10::ScalarType sum_type(c10::ScalarType type);

// Converts `count` elements between a type and the type in which its elements are added, in either direction,
// with the rounding of reduce(). Copies them if it is the same type.
void convert(const std::byte* from, c10::ScalarType type_from, std::byte* to, c10::ScalarType type_to,
             int64_t count);

}  // namespace tutti::comm
