#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tutti {

// The types of numbers that are moved and added. The values are those of LibTorch's ScalarType.
enum class ElementType : int8_t {
  UInt8 = 0,
  Int8 = 1,
  Int16 = 2,
  Int32 = 3,
  Int64 = 4,
  Float16 = 5,
  Float32 = 6,
  Float64 = 7,
  Complex64 = 9,
  Complex128 = 10,
  Bool = 11,
  BFloat16 = 15,
};

constexpr ElementType kElementTypes[] = {
    ElementType::UInt8, ElementType::Int8,     ElementType::Int16,     ElementType::Int32,
    ElementType::Int64, ElementType::Float16,  ElementType::Float32,   ElementType::Float64,
    ElementType::Bool,  ElementType::BFloat16, ElementType::Complex64, ElementType::Complex128};

// Returns the bytes of an element; 0 for a number that is none of the types.
constexpr size_t size_of(ElementType type) {
  switch (type) {
    case ElementType::UInt8:
    case ElementType::Int8:
    case ElementType::Bool:
      return 1;
    case ElementType::Int16:
    case ElementType::Float16:
    case ElementType::BFloat16:
      return 2;
    case ElementType::Int32:
    case ElementType::Float32:
      return 4;
    case ElementType::Int64:
    case ElementType::Float64:
    case ElementType::Complex64:
      return 8;
    case ElementType::Complex128:
      return 16;
  }
  return 0;
}

// Returns the name as shown to users: "float32", "bfloat16"; "" for a number that is none of the types.
constexpr std::string_view name_of(ElementType type) {
  switch (type) {
    case ElementType::UInt8:
      return "uint8";
    case ElementType::Int8:
      return "int8";
    case ElementType::Int16:
      return "int16";
    case ElementType::Int32:
      return "int32";
    case ElementType::Int64:
      return "int64";
    case ElementType::Float16:
      return "float16";
    case ElementType::Float32:
      return "float32";
    case ElementType::Float64:
      return "float64";
    case ElementType::Complex64:
      return "complex64";
    case ElementType::Complex128:
      return "complex128";
    case ElementType::Bool:
      return "bool";
    case ElementType::BFloat16:
      return "bfloat16";
  }
  return "";
}

}  // namespace tutti
