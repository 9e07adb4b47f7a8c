#include "tutti/comm/widen.h"

#include <cstring>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace tutti::comm {
namespace {

template <class From, class To>
void convert_each(const std::byte* from, std::byte* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    reinterpret_cast<To*>(to)[i] = static_cast<To>(reinterpret_cast<const From*>(from)[i]);
}

}  // namespace

c10::ScalarType sum_type(c10::ScalarType type) {
  const bool half = type == c10::ScalarType::Half || type == c10::ScalarType::BFloat16;
  return half ? c10::ScalarType::Float : type;
}

void convert(const std::byte* from, c10::ScalarType type_from, std::byte* to, c10::ScalarType type_to,
             int64_t count) {
  if (type_from == type_to) {
    if (count > 0 && from != to)
      std::memcpy(to, from, static_cast<size_t>(count) * c10::elementSize(type_to));
  } else if (type_from == c10::ScalarType::Half) {
    convert_each<c10::Half, float>(from, to, count);
  } else if (type_from == c10::ScalarType::BFloat16) {
    convert_each<c10::BFloat16, float>(from, to, count);
  } else if (type_to == c10::ScalarType::Half) {
    convert_each<float, c10::Half>(from, to, count);
  } else {
    convert_each<float, c10::BFloat16>(from, to, count);
  }
}

}  // namespace tutti::comm
