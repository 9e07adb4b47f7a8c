#pragma once

#include <string>
#include <string_view>

#include <c10/core/ScalarType.h>

#include "tutti/base/element_type.h"
#include "tutti/base/error.h"

namespace tutti {

static_assert(static_cast<int>(ElementType::UInt8) == static_cast<int>(c10::ScalarType::Byte) &&
              static_cast<int>(ElementType::Int64) == static_cast<int>(c10::ScalarType::Long) &&
              static_cast<int>(ElementType::Float16) == static_cast<int>(c10::ScalarType::Half) &&
              static_cast<int>(ElementType::Float64) == static_cast<int>(c10::ScalarType::Double) &&
              static_cast<int>(ElementType::Complex128) == static_cast<int>(c10::ScalarType::ComplexDouble) &&
              static_cast<int>(ElementType::Bool) == static_cast<int>(c10::ScalarType::Bool) &&
              static_cast<int>(ElementType::BFloat16) == static_cast<int>(c10::ScalarType::BFloat16));

// Returns the name of a type as shown to users: "float32", "bfloat16", "int64".
inline std::string type_name(c10::ScalarType type) {
  const std::string_view name = name_of(static_cast<ElementType>(type));
  return name.empty() ? c10::toString(type) : std::string(name);
}

// Returns the type of this name. Throws InvalidArgument if there is none, or if it is one that is not saved
// or sent.
inline c10::ScalarType type_named(std::string_view name) {
  for (const ElementType type : kElementTypes) {
    const auto own = static_cast<c10::ScalarType>(type);
    if (name_of(type) == name && !c10::isComplexType(own)) return own;
  }
  fail(ErrorKind::InvalidArgument, "the type '{}' is unknown", name);
}

}  // namespace tutti
