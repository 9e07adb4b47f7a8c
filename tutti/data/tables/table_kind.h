#pragma once

#include <cstdint>

namespace tutti::data {

// What the cells of a table hold, and what a batch has of them.
struct TableKind {
  enum class Form {
    Dense,    // a number a cell: (rows, columns)
    Ragged,   // lists of numbers: (rows, columns, longest of the batch), NaN behind the end of each
    Padded,   // the same as long as `size` always; a longer list is an error
    Indices,  // a list of numbers from 0 to `size` - 1: a sparse (rows, size) that is 1 there, and else 0
  };
  Form form = Form::Dense;
  int64_t size = 0;
};

inline TableKind dense() { return {}; }
// A list is written as 1 2 3, 1,2,3 or 1;2;3, with or without [brackets] around it. A cell that is empty is a
// list without numbers; what stands for a missing value is one.
inline TableKind ragged() { return {TableKind::Form::Ragged}; }
inline TableKind padded(int64_t size) { return {TableKind::Form::Padded, size}; }
inline TableKind indices(int64_t size) { return {TableKind::Form::Indices, size}; }

// What becomes of a row that is no row of its table.
enum class BadRows { Error, Skip };

}  // namespace tutti::data
