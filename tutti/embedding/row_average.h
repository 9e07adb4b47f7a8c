#pragma once

#include <cstdint>
#include <span>

#include <torch/types.h>

#include "tutti/embedding/row_memory.h"
#include "tutti/embedding/row_optimizer.h"
#include "tutti/params/average_weights.h"

namespace tutti::embedding {

// The moving averages of rows, which is what MovingAverage is for the other parameters: the same weights, and
// the same values but for rounding. A row has a value per step, but changes only in steps that look it up, so
// its average is computed when it changes and when it is read: if the average after m steps was kept and the
// row has had one value since then,
//   average after n = value + first(m, n) * (average after m - value)
// with the weights of AverageWeights. The average of a row that has never changed is its value.
//
// Rows are given by the slots in which they are kept, `dim` numbers each. Not thread-safe.
class RowAverage {
 public:
  RowAverage(double decay, int64_t slots, int64_t dim, const MakeRows& make = {});

  double decay() const { return weights_.decay; }
  // The number of steps that are averaged.
  int64_t steps() const { return steps_; }
  void put_steps(int64_t steps) { steps_ = steps; }

  // Keeps room for so many slots, no fewer than before; begin_row() says that one has a new row.
  void resize(int64_t slots, const RowPlace& place = {});
  void begin_row(int64_t slot);
  // Forgets everything.
  void reset();

  // To be called for each row that a step changes, before it does.
  void before_change(int64_t slot, const float* value);
  void count_step() { ++steps_; }

  // Copies the average of a row with this value to `to`. `before`: the one before the last step, which for
  // rows that this step has changed does not depend on the value.
  void read(int64_t slot, const float* value, bool before, float* to) const;

  // For checkpoints: the averages (slots, dim), and the number of steps after which each was kept (slots);
  // kNone for rows that have never changed.
  static constexpr int64_t kNone = -1;
  const torch::Tensor& kept() const { return kept_; }
  const torch::Tensor& kept_after() const { return kept_after_; }
  void put(int64_t slot, const float* kept, int64_t kept_after);

 private:
  float* kept_at(int64_t slot) const { return static_cast<float*>(kept_.data_ptr()) + slot * dim_; }
  int64_t& after(int64_t slot) const { return static_cast<int64_t*>(kept_after_.data_ptr())[slot]; }

  const AverageWeights weights_;
  const int64_t dim_;
  int64_t steps_ = 0;
  torch::Tensor kept_;
  torch::Tensor kept_after_;
};

}  // namespace tutti::embedding
