#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/embedding/row_shard.h"
#include "tutti/embedding/row_sums.h"
#include "tutti/lanes/lanes.h"
#include "tutti/metrics/running_mean.h"

namespace tutti::embedding {

// The sums of gradients of an owner's rows, which one worker sends to this owner after its lanes.
struct RowGradients {
  // For each table the number of sums, and of each sum the row, the node of the tree (code_of), and for a
  // table that grows the number of lookups.
  std::vector<int64_t> heads = {};
  std::vector<std::span<const float>> values = {};       // for each table, `dim` numbers per sum
  std::vector<std::shared_ptr<const void>> owners = {};  // of the values; empty: the caller keeps them
};
int64_t code_of(const comm::TreeNode& node);

// The rows of all tables that one task owns, whoever reads and trains them: the workers among themselves, or
// workers of parameter servers. Lists that come from other tasks are checked. Not thread-safe.
class OwnedRows {
 public:
  // `seed` is the seed of the initial rows.
  OwnedRows(const std::vector<TableSpec>& tables, int owner, int owners, int64_t seed,
            const RowPlace& place = {});

  int owner() const { return owner_; }
  std::vector<RowShard>& shards() { return shards_; }
  const std::vector<RowShard>& shards() const { return shards_; }
  // Returns the shard of the table. Throws InvalidArgument that says that `what` has an unknown table.
  RowShard& shard_of(const std::string& table, const std::string& what);

  // Returns these values of the rows that are asked for: for each table, their number, and which; now, or as
  // they were before the last step that was begun.
  torch::Tensor read(std::span<const int64_t> asked, RowValues values = RowValues::Last,
                     RowShard::When when = RowShard::When::Now) const;

  // Take the parts of a RowGradients from lists: how many numbers belong to the heads, and the numbers
  // of each table.
  int64_t numbers_of(std::span<const int64_t> heads) const;
  std::vector<std::span<const float>> split(std::span<const int64_t> heads,
                                            std::span<const float> numbers) const;

  // Returns the sums of a worker with these lanes, for each table. The numbers stay where they are. Throws
  // InvalidArgument if they cannot be such sums.
  std::vector<RowSumsView> sums_in(const RowGradients& gradients, const LaneRange& range) const;
  // A step: add_up() adds the sums of the workers, in the order of their lanes, along the tree over all
  // lanes, and divides them by the divisor unless it is 0. A worker without sums had no data. begin_step()
  // then makes the rows that tables get in this step.
  void add_up(std::span<const std::vector<RowSumsView>> workers, int64_t lanes, double divisor);
  void begin_step(int64_t step);
  // The sum of the squares of the mean gradients of these rows.
  metrics::ExactSum squares() const;
  // Updates the rows. `factor` multiplies the gradients, `rate` the learning rates of the tables' optimisers.
  // `step` is the number of steps including this one.
  void update(double factor, double rate, int64_t step);
  // Ends a step without examples, in place of both.
  void skip_step();
  // From now on, steps are recorded, so that another worker can complete them. The log must outlive this.
  void keep_log(StepLog& log);
  const StepLog* log() const { return log_; }
  // In place of an owner that is lost: takes back a change of ids that the owner did not complete, and then
  // begins the step that the log has.
  void take_back();
  void resume_step();
  void remember_steps();
  // The steps of the moving averages of all tables; 0 if there are none.
  int64_t averaged_steps() const;
  void put_averaged_steps(int64_t steps);

  // Two numbers for each table, of which the sums over all owners are a checksum of the rows.
  std::vector<uint64_t> checksum() const;
  std::map<std::string, GrowthCounts> counts() const;

 private:
  // Returns the number of sums of each table in the heads.
  std::vector<int64_t> counts_in(std::span<const int64_t> heads) const;

  int owner_;
  std::vector<RowShard> shards_;
  StepLog* log_ = nullptr;
};

// The factor for the learning rates of tables when the model has the rate `rate`.
double relative_rate(double rate, const OptimizerOptions& model);

// The checksum of all owners together.
std::string joined_checksum(std::span<const std::vector<uint64_t>> owners);

}  // namespace tutti::embedding
