#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include <torch/types.h>

#include "tutti/base/json.h"
#include "tutti/embedding/row_memory.h"
#include "tutti/params/optimizer_options.h"

namespace tutti::embedding {

// Adagrad with one accumulator for each row, the mean of the squared gradients, instead of one for each
// number. It needs a fraction of the memory, and usually trains as well.
struct RowwiseAdagrad {
  double rate = 0.01;
  double eps = 1e-10;
};

// The optimiser of a table's rows. Only the rows that a step has looked up are updated, and once: momentum,
// weight decay and the averages of Adam do not act on the others ("lazy"). The learning rate follows the
// schedule of the model's optimiser in proportion.
struct RowOptimizerOptions {
  // Implicit, so that each kind of options can be used by itself.
  RowOptimizerOptions(RowwiseAdagrad options) : kind(options) {}  // NOLINT(google-explicit-constructor)
  RowOptimizerOptions(OptimizerOptions options)                   // NOLINT(google-explicit-constructor)
      : kind(std::move(options)) {}
  template <class Options>
  requires(OptimizerOptions::IsIn<Options, OptimizerOptions::Kind>::value)
      RowOptimizerOptions(Options options)  // NOLINT(google-explicit-constructor)
      : kind(OptimizerOptions(std::move(options))) {}

  std::variant<OptimizerOptions, RowwiseAdagrad> kind;  // the optimiser with its options
};

double learning_rate_of(const RowOptimizerOptions& options);
// For plans and manifests: {"name": "adagrad", "lr": 0.01, ...}.
Json to_json(const RowOptimizerOptions& options);
// `own` are the optimisers of the program that the JSON may name.
RowOptimizerOptions row_optimizer_of_json(const Json& json, std::span<const ElementwiseOptimizer> own);

// Makes a tensor that begins with this value everywhere, unless it has the rows of an owner already.
using MakeRows =
    std::function<torch::Tensor(const std::vector<int64_t>& shape, torch::ScalarType type, double initial)>;

// The optimiser of some rows, with what it keeps for each of them. Not thread-safe.
class RowOptimizer {
 public:
  // Throws an InvalidArgument that names the table if its rows cannot be updated like that.
  RowOptimizer(const std::string& table, RowOptimizerOptions options, int64_t rows, int64_t dim,
               const MakeRows& make = {});

  // Keeps room for so many rows, no fewer than before; begin_row() begins one anew.
  void resize(int64_t rows, const RowPlace& place = {});
  void begin_row(int64_t row);

  // Updates these rows of `values` (rows, dim), each with the gradient at the same index of `gradients`, and
  // skips rows that are negative. `step` is the number of steps including this one.
  void step(const torch::Tensor& values, std::span<const int64_t> rows, std::span<const float> gradients,
            double rate, int64_t step);

  // A value, or `dim` values, for each row.
  struct Slot {
    std::string name;
    torch::Tensor tensor;
    double initial = 0;
  };
  const std::vector<Slot>& slots() const { return slots_; }

 private:
  void update_by_program(const ElementwiseOptimizer& optimizer, const torch::Tensor& values,
                         std::span<const int64_t> rows, std::span<const float> gradients, double rate,
                         int64_t step);

  const RowOptimizerOptions options_;
  const int64_t dim_;
  std::vector<Slot> slots_;
};

}  // namespace tutti::embedding
