#pragma once

#include <string>
#include <string_view>

#include <c10/core/ScalarType.h>

#include "tutti/base/error.h"

namespace tutti {

// Returns the name of a type as shown to users: "float32", "bfloat16", "int64".
inline std::string type_name(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Float:
      return "float32";
    case c10::ScalarType::Double:
      return "float64";
    case c10::ScalarType::BFloat16:
      return "bfloat16";
    case c10::ScalarType::Half:
      return "float16";
    case c10::ScalarType::Long:
      return "int64";
    case c10::ScalarType::Int:
      return "int32";
    case c10::ScalarType::Short:
      return "int16";
    case c10::ScalarType::Char:
      return "int8";
    case c10::ScalarType::Byte:
      return "uint8";
    case c10::ScalarType::Bool:
      return "bool";
    default:
      return c10::toString(type);
  }
}

// Returns the type of this name. Throws InvalidArgument if there is none, or if it is one that is not saved
// or sent.
inline c10::ScalarType type_named(std::string_view name) {
  using Type = c10::ScalarType;
  for (const Type type : {Type::Float, Type::Double, Type::BFloat16, Type::Half, Type::Long, Type::Int,
                          Type::Short, Type::Char, Type::Byte, Type::Bool}) {
    if (type_name(type) == name) return type;
  }
  fail(ErrorKind::InvalidArgument, "the type '{}' is unknown", name);
}

}  // namespace tutti
