#pragma once

#include <cstddef>
#include <cstdint>

#include <c10/core/ScalarType.h>

namespace tutti::comm {

// Returns the type in which elements of this type are added: float32 for half precision, else the same type.
c10::ScalarType sum_type(c10::ScalarType type);

// Convert `count` elements of `type` to the type in which they are added, and back with the rounding of
// reduce(). They copy if that is the same type.
void widen(const std::byte* from, std::byte* to, c10::ScalarType type, int64_t count);
void narrow(const std::byte* from, std::byte* to, c10::ScalarType type, int64_t count);

}  // namespace tutti::comm
