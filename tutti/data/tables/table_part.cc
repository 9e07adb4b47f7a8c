#include "tutti/data/tables/table_part.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include <ATen/Functions.h>

namespace tutti::data {
namespace {

using Places = std::vector<RowPlace>;

torch::Tensor dense_rows(const Places& places) {
  const size_t columns = places[0].part->table->columns().size();
  const torch::Tensor numbers =
      at::empty({static_cast<int64_t>(places.size()), static_cast<int64_t>(columns)}, at::kFloat);
  float* to = static_cast<float*>(numbers.data_ptr());
  std::string buffer;
  for (size_t begin = 0, end = 0; begin < places.size(); begin = end) {
    const auto& [part, row] = places[begin];
    for (end = begin + 1; end < places.size(); ++end) {
      if (places[end].part != part || places[end].row != row + static_cast<int64_t>(end - begin)) break;
    }
    part->read(row, row + static_cast<int64_t>(end - begin), to, buffer);
    to += (end - begin) * columns;
  }
  return numbers;
}

torch::Tensor tensor_rows(const Places& places) {
  std::vector<torch::Tensor> rows;
  for (const auto& [part, row] : places) rows.push_back(part->tensor.select(0, row));
  return at::stack(rows);
}

// The lists of a batch, ordered by row and then by column.
struct Lists {
  explicit Lists(const Places& places)
      : rows(static_cast<int64_t>(places.size())),
        columns(static_cast<int64_t>(places[0].part->table->columns().size())) {
    std::vector<float> of_row;
    std::vector<int64_t> lengths_of_row;
    std::string buffer;
    for (const auto& [part, row] : places) {
      part->table->read_lists(row, of_row, lengths_of_row, buffer);
      numbers.insert(numbers.end(), of_row.begin(), of_row.end());
      lengths.insert(lengths.end(), lengths_of_row.begin(), lengths_of_row.end());
    }
  }

  torch::Tensor lengths_of_rows() const { return at::tensor(lengths, at::kLong).reshape({rows, columns}); }
  torch::Tensor padded_to(int64_t width) const {
    torch::Tensor all = at::full({static_cast<int64_t>(lengths.size()), width},
                                 std::numeric_limits<float>::quiet_NaN(), at::kFloat);
    float* to = static_cast<float*>(all.data_ptr());
    const float* from = numbers.data();
    for (const int64_t length : lengths) {
      std::copy_n(from, length, to);
      from += length;
      to += width;
    }
    return all.reshape({rows, columns, width});
  }
  int64_t longest() const { return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end()); }
  // Returns a sparse tensor that is 1 if any of a row's lists contains the index.
  torch::Tensor as_sparse(int64_t size) const {
    std::set<std::pair<int64_t, int64_t>> ones;
    const float* index = numbers.data();
    for (size_t list = 0; list < lengths.size(); ++list) {
      for (int64_t i = 0; i < lengths[list]; ++i)
        ones.emplace(static_cast<int64_t>(list) / columns, static_cast<int64_t>(*index++));
    }
    const torch::Tensor places = at::empty({2, static_cast<int64_t>(ones.size())}, at::kLong);
    int64_t* to = static_cast<int64_t*>(places.data_ptr());
    for (const auto& [row, column] : ones) {
      to[ones.size()] = column;
      *to++ = row;
    }
    return at::sparse_coo_tensor(places, at::ones({places.size(1)}, at::kFloat), {rows, size})
        ._coalesced_(true);
  }

  int64_t rows;
  int64_t columns;
  std::vector<float> numbers;
  std::vector<int64_t> lengths;
};

}  // namespace

std::vector<std::string> TablePart::columns() const {
  if (table) return table->columns();
  std::vector<std::string> shape = {c10::toString(tensor.scalar_type())};
  for (int64_t i = 1; i < tensor.dim(); ++i) shape.push_back(std::to_string(tensor.size(i)));
  return shape;
}

void TablePart::read(int64_t begin, int64_t end, float* numbers, std::string& buffer) const {
  const size_t columns = table->columns().size();
  const auto place = [&](int64_t row) { return numbers + static_cast<size_t>(row - begin) * columns; };
  for (int64_t row = begin; row < end;) {
    int64_t missing = row;
    while (missing < end && !(kept && kept->find(missing, place(missing)))) ++missing;
    if (missing > row) table->read(row, missing, place(row), buffer);
    for (int64_t read = row; kept && read < missing; ++read) kept->keep(read, place(read));
    row = missing + 1;
  }
}

void append_rows(const std::string& name, const TableKind& kind, const Places& places, Batch::Tensors& to) {
  if (!places[0].part->table) {
    to.emplace_back(name, tensor_rows(places));
    return;
  }
  if (kind.form == TableKind::Form::Dense) {
    to.emplace_back(name, dense_rows(places));
    return;
  }
  const Lists lists(places);
  if (kind.form == TableKind::Form::Indices) {
    to.emplace_back(name, lists.as_sparse(kind.size));
  } else {
    to.emplace_back(name,
                    lists.padded_to(kind.form == TableKind::Form::Padded ? kind.size : lists.longest()));
  }
  to.emplace_back(name + " length", lists.lengths_of_rows());
}

}  // namespace tutti::data
