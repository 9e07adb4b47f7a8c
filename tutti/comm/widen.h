#pragma once

#include <cstddef>
#include <cstdint>

#include <c10/core/ScalarType.h>

namespace tutti::comm {

// In which elements of this type are added: float32 for half precision, else their own.
c10::ScalarType sum_type(c10::ScalarType type);

// So many elements to the type in which they are added, and back to their own, rounded as reduce() rounds; a
// copy where that is the same type.
void widen(const std::byte* from, std::byte* to, c10::ScalarType type, int64_t count);
void narrow(const std::byte* from, std::byte* to, c10::ScalarType type, int64_t count);

}  // namespace tutti::comm
