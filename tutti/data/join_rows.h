#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/data/batch.h"

namespace tutti::data {

// One column of a feed's batches, of which only the number of rows is left open.
struct Column {
  std::string name;
  torch::ScalarType type = torch::kFloat;
  std::vector<int64_t> shape = {};  // of one row
  bool is_ragged = false;           // the last dimension of `shape` is that of the longest list of a batch
};

std::vector<Column> columns_in(const Batch& batch);
// Returns "x float32[3], label int64[]".
std::string text_of(const std::vector<Column>& columns);
// Returns true if both have the same names, types and shapes, in any order.
bool are_alike(const std::vector<Column>& a, const std::vector<Column>& b);

// The rows of one part of a batch, and where in the batch they belong.
struct PartRows {
  size_t part = 0;  // for errors
  Batch batch;
  std::vector<int64_t> positions = {};  // one for each row
};

// Joins the rows of several parts, whose positions are 0 to `rows`, each once. The columns have the order of
// `columns`; ragged ones are padded with NaN to the longest list. A part whose columns are not those is an
// InvalidArgument.
Batch join_rows(const std::vector<PartRows>& parts, int64_t rows, const std::vector<Column>& columns);

}  // namespace tutti::data
