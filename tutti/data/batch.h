#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/types.h>

namespace tutti {

// Named tensors with one row per example. A value; copying copies handles. May have no examples (size() ==
// 0), and is then never passed to a loss.
class Batch {
 public:
  using Tensors = std::vector<std::pair<std::string, torch::Tensor>>;

  Batch() = default;
  // All tensors need the same first dimension, and names must be unique; else InvalidArgument.
  explicit Batch(Tensors tensors);

  // An unknown name is an InvalidArgument that lists the existing names.
  const torch::Tensor& operator[](std::string_view name) const;
  bool has(std::string_view name) const;
  const torch::Tensor& front() const;
  const Tensors& tensors() const { return tensors_; }

  // The number of examples.
  int64_t size() const;

  // Returns the same examples with each tensor replaced by what the function returns for it.
  Batch with_each(const std::function<torch::Tensor(const torch::Tensor&)>& replace) const;
  // Returns the batch on another device. A copy to a GPU is asynchronous if the memory is pinned.
  Batch to(torch::Device device) const;
  Batch pinned() const;

  // Returns a name of an example for errors: "example 'u17' (data/shard3)", or "example 5 of the batch" if
  // the batch has no names.
  std::string describe(int64_t example) const;
  // `name` returns the first of these texts, without "example". It is called on the thread that has the
  // error.
  using NameOf = std::function<std::string(int64_t example)>;
  void name_examples(NameOf name);

 private:
  Tensors tensors_;
  std::shared_ptr<const NameOf> name_of_;
};

}  // namespace tutti

namespace tutti::data {

// One column of a feed's batches, without the number of rows.
struct Column {
  std::string name;
  torch::ScalarType type = torch::kFloat;
  std::vector<int64_t> shape = {};  // of one row
  bool is_ragged = false;           // the last dimension of `shape` is the length of a batch's longest list
};

std::vector<Column> columns_in(const Batch& batch);
// Returns "x float32[3], label int64[]".
std::string text_of(const std::vector<Column>& columns);
// Returns true if both have the same names, types and shapes, in any order.
bool are_alike(const std::vector<Column>& a, const std::vector<Column>& b);

// The rows of one part of a batch, and their positions in the batch.
struct PartRows {
  size_t part = 0;                      // for errors
  std::vector<int64_t> positions = {};  // one for each row
  Batch batch = {};
};

// Joins the rows of several parts, whose positions are 0 to `rows`, each once. The columns have the order of
// `columns`; ragged ones are padded to the longest list with NaN, or with -1 if they are int64. Throws
// InvalidArgument if a part has other columns.
Batch join_rows(const std::vector<PartRows>& parts, int64_t rows, const std::vector<Column>& columns);

}  // namespace tutti::data
