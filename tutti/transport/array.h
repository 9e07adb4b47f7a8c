#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tutti/base/element_type.h"

namespace tutti::comm {

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

// A range of elements, [begin, end).
struct ElementRange {
  int64_t begin;
  int64_t end;

  int64_t size() const { return end - begin; }
};

// Elements of one type in memory, one after the other, which belong to the caller: on the CPU, or on the
// device of the Carrier that moves them.
struct Array {
  std::byte* data = nullptr;
  ElementType type = ElementType::UInt8;
  int64_t count = 0;

  size_t size() const { return static_cast<size_t>(count) * size_of(type); }
  Bytes bytes() const { return {data, size()}; }
  Array part(int64_t begin, int64_t elements) const {
    return {data + static_cast<size_t>(begin) * size_of(type), type, elements};
  }
  Array part(const ElementRange& range) const { return part(range.begin, range.size()); }
  Array none() const { return {data, type, 0}; }
};

using Arrays = std::vector<Array>;

// Cuts an array into equal parts.
inline Arrays equal_parts(const Array& whole, int parts) {
  Arrays cut;
  const int64_t each = whole.count / parts;
  for (int r = 0; r < parts; ++r) cut.push_back(whole.part(r * each, each));
  return cut;
}

inline Arrays parts_of(const Array& whole, const std::vector<ElementRange>& slices) {
  Arrays cut;
  for (const ElementRange& slice : slices) cut.push_back(whole.part(slice));
  return cut;
}

}  // namespace tutti::comm
