#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <torch/types.h>

#include "tutti/embedding/row_sums.h"

namespace tutti::embedding {

// What the rows of a table have in one piece of memory: their values, a slot of the optimiser, an average.
struct RowArray {
  std::byte* begin = nullptr;
  size_t width = 0;  // bytes of a row
};

// A record of the step that an owner of rows makes, in memory that all workers of the host share: the mean
// gradients, and how far the update has come. If the owner is lost in the middle of the update, another
// worker completes it.
//
// Rows are updated in blocks. Before a block is changed, its rows are saved here, in place of the block
// before. So a block is either done, or not begun, or can be taken back and be made again. Not thread-safe.
class StepLog {
 public:
  static constexpr size_t kBlockBytes = size_t{32} << 10;
  // Returns how many rows are a block if the arrays have so many bytes for each row.
  static size_t rows_in_block(size_t row_bytes);
  // Returns the size of the state of an owner whose largest row has so many bytes.
  static int64_t words_of_state(size_t largest_row_bytes);

  // The state has to be zeros at first, or the state of the owner that is lost. Both are tensors of int64.
  StepLog(torch::Tensor state, torch::Tensor gradients);

  // Makes this process the one that writes: as the owner, or in place of a process that was lost. Then it
  // waits until that process has ended, and so writes nothing more; throws Timeout if it does not end.
  void begin();
  void take_over();
  // Says that the owner has all of its rows.
  void set_whole();
  bool is_whole() const;

  // Begins a step, with its number and the number of steps in the moving averages before it. Then write() is
  // called for each table. It returns the values, which stay in the memory of the log until the next step.
  void begin(int64_t step, int64_t averaged_steps);
  std::span<const float> write(const RowSums& means);
  int64_t step() const;
  int64_t averaged_steps() const;
  // Returns what was written for the next table. Called for one table after the other.
  RowSums read(int64_t dim);

  // Gives the log larger memory, between two steps.
  void move_gradients(torch::Tensor gradients) { gradients_ = std::move(gradients); }
  int64_t room() const { return gradients_.numel(); }

  // Changes the next block of rows, unless it is already done.
  template <class Change>
  void change(std::span<const RowArray> arrays, std::span<const int64_t> rows, const Change& change) {
    if (!begin_block(arrays, rows)) return;
    change();
    end_block();
  }

 private:
  void set_writer();
  bool begin_block(std::span<const RowArray> arrays, std::span<const int64_t> rows);
  void end_block();
  int64_t* state() const { return static_cast<int64_t*>(state_.data_ptr()); }
  int64_t* gradients() const { return static_cast<int64_t*>(gradients_.data_ptr()); }

  torch::Tensor state_;
  torch::Tensor gradients_;
  int64_t used_ = 0;        // words of the gradients that were written or read
  int64_t next_block_ = 0;  // of the step
};

}  // namespace tutti::embedding
