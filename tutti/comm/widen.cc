#include "tutti/comm/widen.h"

#include <cstring>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace tutti::comm {
namespace {

template <class From, class To>
void convert(const std::byte* from, std::byte* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    reinterpret_cast<To*>(to)[i] = static_cast<To>(reinterpret_cast<const From*>(from)[i]);
}

void copy(const std::byte* from, std::byte* to, c10::ScalarType type, int64_t count) {
  if (count > 0) std::memcpy(to, from, static_cast<size_t>(count) * c10::elementSize(type));
}

}  // namespace

c10::ScalarType sum_type(c10::ScalarType type) {
  const bool half = type == c10::ScalarType::Half || type == c10::ScalarType::BFloat16;
  return half ? c10::ScalarType::Float : type;
}

void widen(const std::byte* from, std::byte* to, c10::ScalarType type, int64_t count) {
  if (type == c10::ScalarType::Half) {
    convert<c10::Half, float>(from, to, count);
  } else if (type == c10::ScalarType::BFloat16) {
    convert<c10::BFloat16, float>(from, to, count);
  } else {
    copy(from, to, type, count);
  }
}

void narrow(const std::byte* from, std::byte* to, c10::ScalarType type, int64_t count) {
  if (type == c10::ScalarType::Half) {
    convert<float, c10::Half>(from, to, count);
  } else if (type == c10::ScalarType::BFloat16) {
    convert<float, c10::BFloat16>(from, to, count);
  } else {
    copy(from, to, type, count);
  }
}

}  // namespace tutti::comm
