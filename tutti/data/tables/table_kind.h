#pragma once

#include <cstdint>

namespace tutti::data {

// Describes what the cells of a table contain, and the tensors that a batch has for them.
struct TableKind {
  enum class Form {
    Dense,    // one number per cell: (rows, columns)
    Ragged,   // lists of numbers: (rows, columns, longest list of the batch), padded with NaN
    Padded,   // like Ragged, but always `size` long; a longer list is an error
    Indices,  // lists of numbers from 0 to `size` - 1: a sparse (rows, size) with 1 at these, else 0
  };
  Form form = Form::Dense;
  int64_t size = 0;
};

inline TableKind dense() { return {}; }
// A list is written as 1 2 3, 1,2,3 or 1;2;3, with or without [brackets] around it. An empty cell is an empty
// list; a cell with a text for missing values is one too.
inline TableKind ragged() { return {TableKind::Form::Ragged}; }
inline TableKind padded(int64_t size) { return {TableKind::Form::Padded, size}; }
inline TableKind indices(int64_t size) { return {TableKind::Form::Indices, size}; }

// How to treat a row with errors.
enum class BadRows { Error, Skip };

}  // namespace tutti::data
