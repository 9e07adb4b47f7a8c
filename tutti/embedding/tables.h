#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include "tutti/base/json.h"
#include "tutti/comm/communicator.h"
#include "tutti/data/batch.h"
#include "tutti/embedding/table.h"
#include "tutti/store/safetensors.h"

namespace tutti::embedding {

// A module with a table whose rows are spread over the workers.
class HasTable {
 public:
  virtual ~HasTable() = default;
  // Null if the table is an ordinary parameter.
  virtual std::shared_ptr<Table> table() const = 0;
};

// All tables of a model, on one worker. A step is fetch(), the lanes, sum() and update(); all workers make
// them together. For all tables there is one exchange of ids, one of rows, and one of gradients. Not
// thread-safe.
class Tables {
 public:
  // Finds the tables of the module, which are named after the submodules that have them.
  explicit Tables(const torch::nn::Module& module);

  bool empty() const { return tables_.empty(); }
  // Lines for the comparison of plans, such as "table user: 1000000 rows of 32, mod, adagrad".
  std::vector<std::string> plan() const;

  // Makes the rows of this worker, with their initial values. Every worker calls it, with the same arguments.
  void place(comm::Communicator& comm, int64_t seed, int64_t lanes, const OptimizerOptions& optimizer);
  // True if this worker can read all rows by itself between two steps.
  bool can_read_alone() const;

  // Fetches the rows for these batches, one for each lane of this worker, or for an evaluation.
  void fetch(std::span<const Batch> batches);
  // The lookups of forward passes between these are those of this lane, by its index among the batches.
  void begin_lane(size_t lane);
  void end_lane();
  // Adds up the gradients of all workers, and divides them by the number of examples. Afterwards each worker
  // has the mean gradients of those of its rows that the step has looked up.
  void sum(int64_t examples, int64_t step);
  // Returns the sum of the squares of all mean gradients, with the same bits on any number of workers.
  double squares();
  // Updates the rows with the mean gradients times `factor`. `learning_rate` is that of the model's optimiser
  // in this step, and `step` the number of steps including it.
  void update(double learning_rate, double factor, int64_t step);
  // Forgets a step without an update.
  void forget();

  // This worker's rows and what the optimiser keeps for them, as tensors whose names say which rows they are:
  // "user.weight[1of4]", "user.weight/sum[1of4]".
  std::vector<store::NamedTensor> state() const;
  // Collects the state of all workers at rank 0; nothing elsewhere.
  std::vector<store::NamedTensor> gather_state() const;
  // The facts that restore() needs: rows, dim and placement of each table.
  Json facts() const;
  // Takes the rows of this worker from the state and facts that rank 0 has, which may be those of another
  // number of workers, or of another placement. Every worker calls it. Throws InvalidArgument if they do not
  // fit.
  // Without `with_optimizer`, what the optimisers keep begins anew.
  void restore(const std::vector<store::NamedTensor>& state, const Json& facts, bool with_optimizer = true);
  // A checksum of all rows, the same on any number of workers. Every worker calls it.
  std::string checksum() const;

 private:
  struct Named {
    std::string name;  // "user"
    std::shared_ptr<Table> table;
  };
  std::pair<const Table*, torch::Tensor> find(const std::string& full) const;
  static RowLayout saved_layout(const Table& table, const Json& facts, int world);
  void take_rows(const torch::Tensor& at_rank_0, const RowLayout& before, int owner, const RowLayout& now,
                 const torch::Tensor& to) const;
  static constexpr const char* kRows = "the rows of tables";  // for errors

  void read_rows();
  void exchange_rows();
  std::vector<float> own_rows(std::span<const int64_t> asked) const;
  std::vector<RowSums> exchange_sums(const std::vector<RowSums>& own, int64_t step);

  std::vector<Named> tables_;
  comm::Communicator* comm_ = nullptr;
  comm::SharedVectors* shared_ = nullptr;
  int64_t lanes_ = 1;
  double model_rate_ = 0;      // the learning rate in the options of the model's optimiser
  std::vector<RowSums> sums_;  // [table]; RowSum::row is a row of this worker
};

}  // namespace tutti::embedding
