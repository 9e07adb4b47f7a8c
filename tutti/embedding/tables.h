#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include "tutti/data/batch.h"
#include "tutti/embedding/owned_rows.h"
#include "tutti/embedding/table.h"
#include "tutti/params/parameters.h"

namespace tutti::embedding {

// A module with a table.
class HasTable : public HasShardedRows {
 public:
  virtual std::shared_ptr<Table> table() const = 0;
  // The rows, if the table is an ordinary parameter of the module; undefined if they are spread over several
  // tasks.
  virtual torch::Tensor table_weight() const = 0;
  bool has_sharded_rows() const final { return !table_weight().defined(); }
};

// A table of a module, under the name of the submodule that has it.
struct NamedTable {
  std::string name;  // "user"
  std::shared_ptr<Table> table;
  torch::Tensor weight;  // undefined if the rows are spread over several tasks
};
// Returns the tables of a module, each once.
std::vector<NamedTable> tables_in(const torch::nn::Module& module);

// The tasks that own the rows of all tables, as a worker sees them.
class RowOwners {
 public:
  virtual ~RowOwners() = default;
  virtual int count() const = 0;
  // Returns true if a worker may read rows by itself. Otherwise all workers call each read() together.
  virtual bool answer_one() const = 0;

  // Rows to be read from each owner (OwnedRows::read), and the numbers that each has for them.
  struct Request {
    std::vector<std::vector<int64_t>> asked = {};  // [owner]
    std::vector<int64_t> numbers = {};             // [owner]
    RowValues values = RowValues::Last;
  };
  // Returns the rows, by owner: one float32 vector each.
  virtual std::vector<torch::Tensor> read(const Request& request) = 0;

  // Returns true if it is of use to announce a request before the computation that comes before it.
  virtual bool hear_ahead() const = 0;
  // Sends a request that will be read with read_announced(), after the next update of the rows. One at a
  // time.
  virtual void announce(Request request) { announced_ = std::move(request); }
  virtual std::vector<torch::Tensor> read_announced() { return read(announced_); }
  // Forgets it.
  virtual void withdraw() { announced_ = {}; }

 protected:
  Request announced_;
};

// The gradients of the rows that the lanes of one worker have looked up.
struct TableGradients {
  std::vector<RowSums> sums;            // [table]
  std::vector<RowGradients> of_owners;  // [owner]; refer to the sums

  void divide(double divisor);
  void multiply(double factor);
  double squares() const;
  bool are_finite() const;
};

// All tables of a model, on one worker. Before the lanes of a step, fetch() gets the rows that they look up,
// and after them gradients() has what the owners need to update the rows: for all tables there is one request
// to each owner, and one message with gradients. Not thread-safe.
class Tables {
 public:
  // Finds the tables of the module that are not parameters, and gives them the names of the submodules that
  // have them.
  explicit Tables(const torch::nn::Module& module);

  bool empty() const { return tables_.empty(); }
  const std::vector<std::shared_ptr<Table>>& tables() const { return tables_; }
  // Lines for the comparison of plans, such as "table user: 1000000 rows of 32, mod, adagrad".
  std::vector<std::string> plan() const;
  // Returns what the owners have to know. `optimizer` is the model's.
  std::vector<TableSpec> specs(const OptimizerOptions& optimizer) const;
  // Lets the owners keep a moving average of the rows with this decay; 0: none. Called before specs().
  void keep_average(double decay) { average_ = decay; }

  // From now on these owners have the rows; they must outlive this.
  void connect(RowOwners& owners);
  // The values that lookups outside of training steps have. Averages are computed by the owners, so they are
  // always fetched.
  void look_up_values(RowValues values);
  RowValues values() const { return values_; }
  // True if lookups read the rows where they are, so that no rows have to be fetched.
  bool are_direct() const;
  // True if a worker may fetch rows by itself.
  bool can_read_alone() const { return are_direct() || owners_->answer_one(); }

  // Fetches the rows for these batches, one for each lane of this worker, or for an evaluation. After the
  // lanes of this worker there may be others, whose gradients are not used.
  void fetch(std::span<const Batch> batches);
  // If looks_ahead(): announces the batches of the next step, for which fetch_ahead() is then called in place
  // of fetch(). Other calls of fetch() may come in between.
  bool looks_ahead() const { return !are_direct() && owners_->hear_ahead(); }
  void look_ahead(std::span<const Batch> batches);
  void fetch_ahead();
  // Forgets what was announced.
  void forget_ahead();

  // Lookups of forward passes between these two calls belong to this lane, by its index among the batches.
  void begin_lane(size_t lane);
  void end_lane();
  // Returns hashes of the gradients of a lane that has ended, of 16 bytes for each table.
  std::string hashes_of_lane(size_t lane) const;
  // Returns the sums of the gradients over the lanes of this worker, `range` out of `lanes`.
  TableGradients gradients(const LaneRange& range, int64_t lanes);

 private:
  // The requests for the rows of the lookups, and for each table the first of its rows at each owner, and the
  // end of the last.
  struct Wanted {
    RowOwners::Request request = {};
    std::vector<std::vector<int64_t>> begin = {};  // [table][owner]
  };
  Wanted wanted_rows(std::vector<Lookups*> lookups) const;
  void take_rows(const Wanted& wanted, const std::vector<torch::Tensor>& rows);
  torch::Tensor read_now(size_t table, std::span<const uint64_t> keys) const;

  std::vector<std::shared_ptr<Table>> tables_;
  RowOwners* owners_ = nullptr;
  double average_ = 0;
  RowValues values_ = RowValues::Last;
  std::vector<Lookups> ahead_;  // [table]
  Wanted wanted_ahead_;
};

}  // namespace tutti::embedding
