#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "tutti/base/json.h"
#include "tutti/embedding/growing_ids.h"
#include "tutti/embedding/row_average.h"
#include "tutti/embedding/row_layout.h"
#include "tutti/embedding/row_memory.h"
#include "tutti/embedding/row_optimizer.h"
#include "tutti/embedding/row_sums.h"
#include "tutti/embedding/step_log.h"
#include "tutti/metrics/running_mean.h"
#include "tutti/store/named_tensors.h"

namespace tutti::embedding {

// Everything that the owner of some rows of a table has to know of the table.
struct TableSpec {
  std::string name;  // of its module: "net.user"
  int64_t rows = 0;  // 0: the table grows
  int64_t dim = 1;
  Placement placement = Placement::Mod;
  double initial_scale = 0;
  Growth growth = {};
  RowOptimizerOptions optimizer = RowwiseAdagrad();
  double average = 0;  // the decay of the moving average of the rows; 0: none
};
Json to_json(const TableSpec& spec);
// `own` are the optimisers of the program that the JSON may name. Throws InvalidArgument if
// the numbers are out of range.
TableSpec spec_of_json(const Json& json, std::span<const ElementwiseOptimizer> own);

// The values of rows that are read: the present ones, or their moving average.
enum class RowValues { Last, Average };

// The rows of a table that one task owns, with their moving average if there is one, and what their optimiser
// keeps for them. Not thread-safe.
class RowShard {
 public:
  // Makes the rows with their initial values, unless the place has them.
  RowShard(TableSpec spec, int owner, int owners, int64_t seed, const RowPlace& place = {});

  const TableSpec& spec() const { return spec_; }
  const RowLayout& layout() const { return layout_; }
  int owner() const { return owner_; }

  // Copies rows, given by their places (RowLayout::Place::row), to `to`.
  void read(std::span<const int64_t> rows, float* to) const;
  // Like read(), but with the values before the last step that was begun. Requires remember_steps().
  void read_before(std::span<const int64_t> rows, float* to) const;
  // Like read(), but copies the moving averages of the rows, or those before the last step. Without an
  // average, like read().
  enum class When { Now, BeforeLastStep };
  void read_average(std::span<const int64_t> rows, When when, float* to) const;
  // From now on, keeps the values of rows as they were before each step.
  void remember_steps() { before_.emplace(); }

  // From now on, steps are recorded, so that another process can complete them. `first` is the first of the
  // arrays that the log has of this table. The log must outlive this.
  void keep_log(StepLog& log, int64_t first);
  // Returns the arrays of a table that grows which the log can take back. Then read_ids() has to read the ids
  // anew.
  std::vector<int64_t*> arrays_of_ids() const;
  void read_ids();
  // Returns the room that is needed if so many ids are put: slots for rows, and slots for ids that wait.
  std::pair<int64_t, int64_t> room(int64_t more = 0) const;
  void reserve(const std::pair<int64_t, int64_t>& room);
  // Returns how many words of the log a step takes that looks up so many rows, and the ids of the table.
  std::pair<int64_t, int64_t> words_of_log(int64_t rows) const;

  // A step: take() takes the mean gradients, one sum for each row, in the order of the rows, and take_again()
  // those that the log has. begin_step() decides which rows exist, and update() changes them.
  void take(RowSums gradients);
  void take_again();
  void begin_step(int64_t step);
  // Adds the sum of squares of the gradient of each row that the step updates.
  void add_squares(metrics::ExactSum& to) const;
  // `factor` multiplies the gradients, and `rate` the learning rate of the table's optimiser.
  void update(double factor, double rate, int64_t step);
  // The bytes of a row with all that is kept for it.
  size_t row_bytes() const;
  // Ends a step without examples, which changes nothing.
  void skip_step();

  // Drops rows before a checkpoint, as Growth says.
  void evict(int64_t step);
  GrowthCounts counts() const { return ids_ ? ids_->counts() : GrowthCounts(); }

  // For a table that does not grow: the memory that was allocated, and the rows in it, (rows, dim).
  const torch::Tensor& memory() const { return memory_; }
  const torch::Tensor& values() const { return values_; }

  // Rows with everything that belongs to them.
  struct State {
    torch::Tensor ids = {};  // int64; undefined: all rows, in the order of their places
    // A value, or a row of values, for each row, by name: "" are the rows themselves, the others the slots of
    // the optimiser.
    store::NamedTensors fields = {};
    // For a table that grows, else undefined. A history has the number of lookups and the step of the last
    // one, (ids, 2). Dropped are rows that no longer exist.
    torch::Tensor history = {};
    torch::Tensor waiting_ids = {};
    torch::Tensor waiting_history = {};
    torch::Tensor dropped_ids = {};
    // The moving averages that were kept of the rows, and after how many steps (RowAverage); undefined if
    // there are none.
    torch::Tensor average = {};
    torch::Tensor average_after = {};
  };
  // The rows of a checkpoint.
  enum class Which {
    All,
    Changed,  // since the last mark_saved()
  };
  // With Which::All, tensors of a table that does not grow are the shard's own.
  State state(Which which) const;
  // All rows with these values, without their average and what the optimiser keeps.
  State weights(RowValues values) const;
  // Says that a checkpoint has all rows.
  void mark_saved();
  // The share of the rows that have changed since then; 1 if it was not called.
  double changed_share() const;

  // Takes a state, in one or more parts, after reset(). Parts have ids, and may have those of any rows; rows
  // of other owners are ignored. With `changed`, the rows count as changed since the last mark_saved().
  // Throws InvalidArgument if the tensors do not fit the table.
  void reset();
  void put(const State& part, bool changed);
  void put_counts(const GrowthCounts& counts) {
    if (ids_) ids_->put_counts(counts);
  }
  // The number of steps that the moving average is over; 0 if there is none.
  int64_t averaged_steps() const { return average_ ? average_->steps() : 0; }
  void put_averaged_steps(int64_t steps) {
    if (average_) average_->put_steps(steps);
  }

  // Two sums over hashes of all rows, which do not depend on who owns them.
  std::pair<uint64_t, uint64_t> checksum() const;

 private:
  // Values as they were before a step.
  struct Before {
    std::vector<int64_t> rows;  // in ascending order
    std::vector<float> values;
  };

  int64_t id_of(int64_t row) const { return layout_.id_at({owner_, row}); }
  // The slot in which a row is kept, and back; IdSlots::kNone if there is none.
  int64_t slot_of(int64_t row) const { return ids_ ? ids_->rows().find(row) : row; }
  int64_t row_in(int64_t slot) const { return ids_ ? ids_->rows().number_in(slot) : slot; }
  int64_t slots() const { return ids_ ? ids_->rows().slots() : layout_.count(owner_); }
  float* at(int64_t slot) const { return data_ + slot * spec_.dim; }
  torch::Tensor memory_for(int64_t width, torch::ScalarType type) const;
  MakeRows maker() const;
  std::vector<RowArray> arrays() const;
  void change(std::span<const int64_t> slots, std::span<const float> gradients, double rate, int64_t step);
  void change_ids(int64_t step);
  void make_room();
  void enlarge(int64_t slots);
  void initialise(int64_t slot);
  void read_missing(int64_t row, float* to) const;
  void remember(const std::vector<GrowingIds::Dropped>& dropped);
  void mark_changed(int64_t slot);
  void end_step();
  void forget_step();
  void put_ids(const State& part, bool changed);
  void put_field(const store::NamedTensor& field, std::span<const int64_t> ids);
  void put_average(const State& part, std::span<const int64_t> ids);

  const TableSpec spec_;
  const RowPlace place_;
  const int owner_;
  const RowLayout layout_;
  const uint64_t seed_;
  torch::Tensor memory_;
  torch::Tensor values_;
  float* data_ = nullptr;  // of the values
  RowOptimizer optimizer_;
  std::optional<RowAverage> average_;
  std::optional<GrowingIds> ids_;  // of a table that grows
  RowSums gradients_;              // of the step
  StepLog::Means means_;           // their values, which may be in the log
  std::vector<int64_t> updated_;   // the slots of its rows; kNone for those that it does not update
  std::optional<Before> before_;
  bool saved_ = false;            // mark_saved() was called, and since then:
  std::vector<char> changed_;     // [slot]
  std::vector<int64_t> dropped_;  // ids
  StepLog* log_ = nullptr;
};

}  // namespace tutti::embedding
