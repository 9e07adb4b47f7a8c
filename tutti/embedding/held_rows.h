#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/comm/communicator.h"
#include "tutti/embedding/owned_rows.h"
#include "tutti/embedding/row_memory.h"
#include "tutti/embedding/tables.h"
#include "tutti/lanes/lanes.h"
#include "tutti/metrics/running_mean.h"

namespace tutti::embedding {

// Returns for each rank the rank that holds a copy of its rows, from the names of the hosts of all ranks: on
// another host if there is one, each with as few copies as possible. There are none with one rank.
inline constexpr int kNobody = -1;
std::vector<int> holders_of_copies(const std::vector<std::string>& host_of_rank);

// The rows that one worker holds: its own, and rows that others own (--replicas), so that they are not lost
// with their owner. There are two ways:
//  - A copy receives the gradients that its owner receives, and makes the same steps, so it has the same
//  bits.
//  - If all workers share memory, they find the rows of an owner that is lost there (RowMemory), and complete
//    its step.
// Communicates with nobody, but allocates shared memory together with the others. Not thread-safe.
class HeldRows {
 public:
  // `holders` has the holder of the copies of each rank's rows. `place` is for the own rows only.
  HeldRows(const std::vector<TableSpec>& tables, int rank, std::vector<int> holders, int64_t seed,
           const RowPlace& place = {});
  // Has the own rows in shared memory.
  HeldRows(const std::vector<TableSpec>& tables, int rank, int world, int64_t seed,
           comm::SharedVectors& shared);

  int rank() const { return rank_; }
  int world() const { return static_cast<int>(holders_.size()); }
  OwnedRows& own() { return all_.front(); }
  const OwnedRows& own() const { return all_.front(); }
  // The worker's own rows, and then the copies and the rows that were adopted.
  std::vector<OwnedRows>& all() { return all_; }
  const std::vector<OwnedRows>& all() const { return all_; }
  // Returns the ranks that receive the gradients of an owner's rows: the owner, and the holder of the copy.
  std::vector<int> receivers_of(int owner) const;
  // Returns true if the rows of a rank that is lost are not lost with it.
  bool survive() const { return memory_ || holders_.front() != kNobody; }

  // Says that this worker has all of its rows, with the values of the run. Until then nobody else takes them.
  void set_whole();
  bool is_whole() const { return is_whole_; }
  // Returns the owners whose rows this worker can give to others, itself first.
  std::vector<int> given() const;
  // Says that this worker makes no more steps with the others, so that they may take its rows.
  void release();
  // Takes the rows of an owner that is lost, in shared memory. If it had received the last step, which has
  // this number, resume_adopted() begins the step with them, and update() or, if this worker has made the
  // step, complete_adopted() ends it.
  void adopt(int owner);
  void resume_adopted(int64_t last);
  void complete_adopted(int64_t last);

  // If the rows are in shared memory: room for the rows of all tables, and for the record of a step. More is
  // added to what this worker has, and then all workers reserve() the most that any of them needs.
  bool has_memory() const { return memory_ != nullptr; }
  using Room = std::vector<int64_t>;
  Room room() const;
  void add_rows(Room& room, size_t table, int64_t rows) const;
  void reserve(const Room& room);

  // A step in five parts. First each worker sends a message with its gradients to every other one. receive()
  // takes this worker's own gradients and the messages of the others, which the sums refer to. add_up() adds
  // them up, and divides them by the number of examples. begin_step() makes new rows, and either update() or
  // skip_step() ends the step, whose number is one more. Until begin_step(), no row has changed, and another
  // receive() begins the step anew.
  torch::Tensor message_to(int rank, const TableGradients& gradients) const;
  using Sums = std::vector<std::vector<std::vector<RowSumsView>>>;  // [held][worker][table]
  Sums receive(const TableGradients& own, const std::vector<torch::Tensor>& messages,
               const std::vector<LaneRange>& lanes) const;
  Room room_for(const Sums& sums) const;
  void add_up(const Sums& sums, int64_t lanes, int64_t examples, int64_t step);
  void begin_step(int64_t step);
  void update(double factor, double rate, int64_t step);
  void skip_step();
  // Returns true between add_up() and the end of the step.
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
  bool is_adopted(const OwnedRows& rows) const { return memory_ && rows.owner() != rank_; }

  // The arguments of an update.
  struct Update {
    double factor = 1;
    double rate = 0;
    int64_t step = 0;
  };

  const int rank_;
  const std::vector<int> holders_;     // [owner]
  const int64_t seed_ = 0;             // of initial rows
  std::unique_ptr<RowMemory> memory_;  // null: the rows of others are copies
  std::vector<OwnedRows> all_;
  bool is_whole_ = false;
  bool has_received_ = false;
  Update last_;  // of the own rows
};

// Makes room for the rows of each worker in the memory that all of them share, if there is such memory.
void reserve_together(comm::Communicator& comm, HeldRows& rows, const HeldRows::Room& room);

}  // namespace tutti::embedding
