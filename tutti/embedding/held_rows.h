#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/embedding/owned_rows.h"
#include "tutti/embedding/tables.h"
#include "tutti/metrics/running_mean.h"
#include "tutti/params/lanes.h"

namespace tutti::embedding {

// Returns for each rank the rank that holds a copy of its rows, from the names of the hosts of all ranks: on
// another host if there is one, each with as few copies as possible. There are none with one rank.
inline constexpr int kNobody = -1;
std::vector<int> holders_of_copies(const std::vector<std::string>& host_of_rank);

// The rows that one worker holds: its own, and copies of rows that others own (--replicas). A copy receives
// the gradients that its owner receives, and makes the same steps, so it has the same bits, and takes the
// place of an owner that is lost. Communicates with nobody. Not thread-safe.
class HeldRows {
 public:
  // `holders` has the holder of the copies of each rank's rows. `allocate` makes memory for the own rows
  // only.
  HeldRows(const std::vector<TableSpec>& tables, int rank, std::vector<int> holders, int64_t seed,
           const RowShard::Allocate& allocate = {});

  int rank() const { return rank_; }
  int world() const { return static_cast<int>(holders_.size()); }
  OwnedRows& own() { return all_.front(); }
  const OwnedRows& own() const { return all_.front(); }
  // The worker's own rows, and then the copies.
  std::vector<OwnedRows>& all() { return all_; }
  const std::vector<OwnedRows>& all() const { return all_; }
  // Returns the ranks that receive the gradients of an owner's rows: the owner, and the holder of the copy.
  std::vector<int> receivers_of(int owner) const;
  // Returns true if the rows of any rank have a copy.
  bool have_copies() const { return holders_.front() != kNobody; }

  // A step in three parts. First each worker sends a message with its gradients to every other one; receive()
  // takes this worker's own gradients and the messages of the others. Then begin_step() adds them up and
  // divides them by the number of examples, and either update() or skip_step() ends the step. Until
  // begin_step(), nothing has changed, and another receive() begins the step anew.
  torch::Tensor message_to(int rank, const TableGradients& gradients) const;
  void receive(TableGradients own, std::vector<torch::Tensor> messages, const std::vector<LaneRange>& lanes);
  void begin_step(int64_t examples, int64_t step);
  void update(double factor, double rate, int64_t step);
  void skip_step();
  // Returns true between receive() and the end of the step.
  bool has_received() const { return has_received_; }
  // Returns the sum of the squares of the mean gradients of the rows of these owners, which are held here.
  metrics::ExactSum squares(const std::vector<int>& owners) const;
  // Drops rows of tables that grow before a checkpoint.
  void evict(int64_t step);

  // Take the state of other rows, after reset(), as RowShard does: the number of steps of the moving
  // averages, and for each table the counts of all owners together, which the first owner keeps.
  void reset();
  void put_totals(int64_t averaged_steps, const std::vector<GrowthCounts>& counts);

 private:
  const int rank_;
  const std::vector<int> holders_;  // [owner]
  std::vector<OwnedRows> all_;

  // The members below belong to one step. The sums refer to the gradients and to the messages.
  bool has_received_ = false;
  int64_t lanes_ = 0;  // of all workers
  TableGradients gradients_;
  std::vector<torch::Tensor> messages_;                      // [worker]
  std::vector<std::vector<std::vector<RowSumsView>>> sums_;  // [held][worker]; empty after begin_step()
};

}  // namespace tutti::embedding
