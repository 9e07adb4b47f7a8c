#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/embedding/held_rows.h"
#include "tutti/embedding/owned_rows.h"
#include "tutti/embedding/row_state.h"
#include "tutti/embedding/tables.h"
#include "tutti/store/named_tensors.h"

namespace tutti::embedding {

template <class Number>
using Lists = std::vector<std::vector<Number>>;  // [worker]

// Lists that every worker sends to every other one, on their way. They must stay where they are until wait()
// returns.
struct ListsUnderWay {
  Lists<int64_t> sent = {};
  Lists<int64_t> received = {};
  comm::Work work = {};
};

// Returns the sum of the sums of all ranks.
metrics::ExactSum sum_of_all(comm::Communicator& comm, const metrics::ExactSum& own);

// The rows of all tables, spread over workers that are connected, of which this is one: each owns a part of
// them. Every worker makes the same calls. Not thread-safe.
class ConnectedRows final : public RowOwners {
 public:
  // Makes the rows of this worker, with their initial values or the values of Table::alone(). Tables
  // and communicator must outlive this. `seed` is the run's, and `optimizer` is the model's. Unless `holders`
  // is empty, rows are not lost with their owner (HeldRows): they are in memory that all workers share, or
  // else the holders have copies of them.
  ConnectedRows(Tables& tables, comm::Communicator& comm, int64_t seed, int64_t lanes,
                const OptimizerOptions& optimizer, std::vector<int> holders = {});

  int count() const override { return comm_.world(); }
  bool answer_one() const override { return comm_.world() == 1; }
  std::vector<torch::Tensor> read(const Request& request) override;
  bool hear_ahead() const override { return comm_.world() > 1; }
  void announce(Request request) override;
  std::vector<torch::Tensor> read_announced() override;
  void withdraw() override;

  // From now on, receive() throws InvalidArgument if a gradient of this worker is not finite.
  void refuse_gradients_that_are_not_finite() { checks_ = true; }
  // Exchanges the gradients of the step, adds them up, and divides them by the number of examples. Afterwards
  // each worker has the mean gradients of the rows that it holds and that the step has looked up; no row has
  // changed. If rows are not lost with their owner, and this has returned on any worker, all workers have
  // received what they need to make the step without the others.
  void receive(int64_t examples, int64_t step);
  // Makes the rows that tables get in this step.
  void begin_step(int64_t step) { held_->begin_step(step); }
  // Returns the sum of the squares of all mean gradients, with the same bits on any number of workers.
  double squares() const;
  // Updates the rows with the mean gradients times `factor`. `learning_rate` is the rate of the model's
  // optimiser in this step, and `step` the number of steps including it. Waits as show() does.
  void update(double learning_rate, double factor, int64_t step);
  // Ends a step without examples, in place of all three.
  void skip_step() { held_->skip_step(); }
  // Waits until this worker can read the updated rows of all others.
  void show(int64_t step) { wait_for_others(step); }

  HeldRows& held() { return *held_; }
  // Gives the rows away before the communicator is reconfigured: nothing else may be called afterwards.
  std::unique_ptr<HeldRows> release() noexcept;
  OwnedRows& rows() { return held_->own(); }
  const OwnedRows& rows() const { return held_->own(); }
  // The facts about the tables for a checkpoint.
  Json facts() const { return saved_facts(tables_.specs(optimizer_), counts(), rows().averaged_steps()); }
  // Returns on the chief what all workers save, and nothing on other workers.
  store::NamedTensors gather(const store::NamedTensors& own) const;
  // Collects the rows with the values that lookups have, and the facts about them, on the chief.
  store::Snapshot gather_weights() const;
  // Takes the rows of a checkpoint that the chief has. `changes` is a second checkpoint, which has only the
  // rows that have changed since. Throws InvalidArgument, on all workers, if they do not fit.
  void restore(const store::Snapshot& saved, const std::optional<store::Snapshot>& changes, RowParts parts);
  // A checksum of all rows, the same on any number of workers.
  std::string checksum() const;
  // Of tables that grow, on all workers together.
  std::map<std::string, GrowthCounts> counts() const;

 private:
  std::vector<torch::Tensor> answers(const Lists<int64_t>& asked, const std::vector<int64_t>& numbers,
                                     RowValues values);
  void put_all(const store::Snapshot& saved, RowParts parts, bool changes);
  void put(const RowChunk& chunk, bool changed);
  void wait_for_others(int64_t step = -1);

  Tables& tables_;
  comm::Communicator& comm_;
  comm::SharedVectors* const shared_;  // null: rows are not in shared memory
  const int64_t lanes_;
  const OptimizerOptions optimizer_;  // of the model
  std::unique_ptr<HeldRows> held_;
  bool checks_ = false;
  std::vector<int64_t> announced_numbers_;
  ListsUnderWay requests_;  // announced
};

}  // namespace tutti::embedding
