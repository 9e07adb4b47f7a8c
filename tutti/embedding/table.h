#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/base/json.h"
#include "tutti/data/batch.h"
#include "tutti/embedding/lookups.h"
#include "tutti/embedding/row_layout.h"
#include "tutti/embedding/row_optimizer.h"

namespace tutti::embedding {

// What happens to an id that is negative or not less than the number of rows.
enum class BadIds {
  Error,  // an InvalidArgument that names table, id and example
  Clamp,  // the nearest row is used
  Drop,   // it has a row of zeros that is not trained
};

struct TableOptions {
  // The columns of a batch with ids of this table. Empty: the column with the name of the module, "user" for
  // one that is registered as "net.user".
  std::vector<std::string> columns = {};
  Placement placement = Placement::Mod;
  BadIds bad_ids = BadIds::Error;
  // Initial values are uniform in [-scale, scale).
  double initial_scale = 0.05;
  // Empty: the optimiser of the model, applied to the rows that are looked up.
  std::optional<RowOptimizerOptions> optimizer = {};
  // Tables of up to so many numbers are ordinary parameters, of which every worker has a copy.
  int64_t replicate_up_to = 65536;
};

// One table whose rows are spread over the workers, and this worker's part of it. Lookups of a step use the
// rows that were fetched before it (Tables). Outside of steps, rows are read where they are, as long as this
// process can reach all of them. Not thread-safe.
class Table {
 public:
  // If `may_be_padded`, the id -1 stands for no id, and has a row of zeros. Throws InvalidArgument if the
  // numbers make no sense.
  Table(int64_t rows, int64_t dim, const TableOptions& options, bool may_be_padded);

  int64_t rows() const { return rows_; }
  int64_t dim() const { return dim_; }
  const TableOptions& options() const { return options_; }
  const std::string& name() const { return name_; }

  // Returns the rows of these ids, in the shape of the ids and then `dim`, for a forward pass.
  torch::Tensor look_up(const torch::Tensor& ids);

  // The same for a table that is an ordinary parameter.
  torch::Tensor look_up_in(const torch::Tensor& weight, const torch::Tensor& ids) const;

  // Everything below is for Tables.
  using Allocate = std::function<torch::Tensor(int64_t elements, const torch::TensorOptions& options)>;
  // Makes this worker's rows. `optimizer` is that of the model. `name` is for errors, columns and
  // checkpoints.
  void place(const std::string& name, const RowLayout& layout, int rank, int64_t seed,
             const OptimizerOptions& optimizer, const Allocate& allocate);
  bool is_placed() const { return lookups_.has_value(); }
  // Lets this process read the rows of all owners, which are in shared memory.
  void show_all(std::vector<torch::Tensor> values) { all_ = std::move(values); }
  bool shows_all() const { return all_.size() == static_cast<size_t>(layout_.world()); }

  const RowLayout& layout() const { return layout_; }
  // The number of bits of a key, and the place that a key stands for.
  int key_bits() const { return key_bits_; }
  RowLayout::Place place_of_key(uint64_t key) const;

  Lookups& lookups() { return *lookups_; }
  // The lookups of one lane: the columns of its batch; none if the batch has no examples.
  std::vector<Lookups::Column> columns_in(const Batch& batch) const;
  // Copies rows of this worker, or of an owner whose memory can be read, into `to` (rows, dim).
  void read(int owner, std::span<const int64_t> rows, float* to) const;

  // The memory of this worker's rows, which may be larger.
  const torch::Tensor& memory() const { return memory_; }
  // This worker's rows, (rows, dim), and what the optimiser keeps for them.
  const torch::Tensor& values() const { return values_; }
  RowOptimizer& optimizer() { return *optimizer_; }
  const RowOptimizer& optimizer() const { return *optimizer_; }
  double learning_rate() const { return rate_; }
  // For plans and manifests.
  Json facts() const;

 private:
  std::vector<uint64_t> keys_of(const torch::Tensor& ids, const std::string& column) const;
  std::vector<int64_t> valid_ids(const torch::Tensor& ids, const std::string& column) const;
  [[noreturn]] void fail_bad_id(int64_t id, int64_t example, const std::string& column) const;
  torch::Tensor read_now(const torch::Tensor& ids);

  const int64_t rows_;
  const int64_t dim_;
  const TableOptions options_;
  const bool may_be_padded_;
  std::string name_ = "embedding";
  std::vector<std::string> columns_;
  RowLayout layout_;
  int rank_ = 0;
  int64_t stride_ = 1;  // a key is owner * stride + row
  int key_bits_ = 0;
  torch::Tensor memory_;
  torch::Tensor values_;
  std::vector<torch::Tensor> all_;  // [owner], as far as they can be read
  std::optional<Lookups> lookups_;
  std::optional<RowOptimizer> optimizer_;
  double rate_ = 0;
};

}  // namespace tutti::embedding
