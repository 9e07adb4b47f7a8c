#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/data/batch.h"

namespace tutti::data {

// Statistics of a column of numbers. Statistics of several parts can be merged: merging them in the same
// order gives the same bits, no matter which task computed which part.
struct ColumnStatistics {
  int64_t count = 0;    // number of values that are not missing
  int64_t missing = 0;  // number of NaNs
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();
  double mean = 0;
  double squares = 0;  // sum of the squared differences from the mean

  void add(double number);
  void merge(const ColumnStatistics& other);

  // Returns the variance of the population, that is, the mean squared difference. 0 if there are no numbers.
  double variance() const { return count > 0 ? squares / static_cast<double>(count) : 0; }
  // Returns a replacement for missing values: the mean, or 0 if there are no numbers.
  double filler() const { return count > 0 ? mean : 0; }
};

// Statistics of a table, column by column. The tensors have one float64 number per column.
struct TableStatistics {
  std::vector<ColumnStatistics> columns = {};

  void merge(const TableStatistics& other);

  // These four are NaN for a column without numbers.
  torch::Tensor min() const;
  torch::Tensor max() const;
  torch::Tensor mean() const;
  torch::Tensor variance() const;
  torch::Tensor count() const;
  torch::Tensor missing() const;
};

// Computes the statistics of a tensor with one row per example; all its other dimensions count as columns.
TableStatistics statistics_of(const torch::Tensor& rows);
// Computes the statistics of `examples` examples, a part at a time.
TableStatistics statistics_in_parts(
    int64_t examples, const std::function<TableStatistics(std::span<const int64_t>)>& statistics_of_part);

// A collection of examples that can be read in any order. Const after construction, so many threads may read
// at the same time.
class Source {
 public:
  virtual ~Source() = default;

  // The number of examples; they are numbered from 0.
  virtual int64_t size() const = 0;

  // Returns the rows of these examples, in this order, in newly allocated memory. Thread-safe. Fails with an
  // Error that names the file and the record.
  virtual Batch read(std::span<const int64_t> examples) const = 0;

  // The ID of an example, or its number if it has none.
  virtual std::string id(int64_t example) const { return std::to_string(example); }
  // The file that the example is read from, for error messages: "data/shard3"; "" if there is none.
  virtual std::string place_of(int64_t /*example*/) const { return {}; }
  // Examples that were skipped because of errors in them.
  struct LeftOut {
    int64_t examples = 0;
    std::string why = {};  // of one of them
  };
  virtual LeftOut left_out() const { return {}; }
  // A readable list of the parts that the examples come from, in their order; "" if unknown. It identifies
  // the data of a run: the same parts in another order are other data.
  virtual std::string parts() const { return {}; }
  // Statistics of the tensors of that name over all examples. Reads all examples, unless a source overrides
  // it.
  virtual TableStatistics statistics(const std::string& name) const;
};

// A source over tensors in memory, with one row per example. The tensors are shared, not copied; they must
// not be changed.
std::shared_ptr<const Source> from_tensors(Batch::Tensors tensors);

// For implementations of read(): throws a Bug that names `what` if an example is outside [0, size).
void check_examples(std::span<const int64_t> examples, int64_t size, std::string_view what);

}  // namespace tutti::data
