#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "tutti/embedding/row_sums.h"

namespace tutti::embedding {

// One piece of memory with something of each row of a table: the values, a slot of the optimiser, or an
// average.
struct RowArray {
  std::byte* begin = nullptr;
  size_t width = 0;  // bytes of a row
};

// A record of the step that an owner of rows makes, in memory that all workers of the host share: the mean
// gradients, and how far the update has come. If the owner is lost in the middle of the update, another
// worker completes it.
//
// Rows are updated in blocks. Before a block is changed, its rows are saved here, in place of the block
// before. So a block is either done, or not begun, or can be taken back and be made again. Likewise the ids
// of each table that grows are changed as a whole. Not thread-safe.
class StepLog {
 public:
  static constexpr size_t kBlockBytes = size_t{32} << 10;
  // Returns how many rows are a block if the arrays have so many bytes for each row.
  static size_t rows_in_block(size_t row_bytes);
  // Returns the size of the state of an owner whose largest row has so many bytes.
  static int64_t words_of_state(size_t largest_row_bytes);

  // The state has to be zeros at first, or the state of the owner that is lost. Both are tensors of int64.
  StepLog(torch::Tensor state, torch::Tensor gradients);

  // Makes this process the one that writes: as the owner, or in place of another process. Then it waits until
  // that process has ended, unless it has released the log, so that only one writes; throws Timeout if it
  // does not end.
  void begin();
  void take_over();
  void release();
  // Says that the owner has all of its rows.
  void set_whole(bool is_whole);
  bool is_whole() const;

  // The mean gradients of a table, in the memory of the log until the next step, and if the table grows the
  // slots that its rows have in the step.
  struct Means {
    std::span<const float> values = {};
    std::span<int64_t> slots = {};
  };
  // Begins a step, with its number and the number of steps in the moving averages before it. Then write() is
  // called for each table.
  void begin(int64_t step, int64_t averaged_steps);
  Means write(const RowSums& means, bool grows);
  int64_t step() const;
  int64_t averaged_steps() const;
  // Return what the step has written: read() for one table after the other, after read_again(). The sums have
  // no values.
  void read_again() { used_ = next_block_ = next_ids_ = 0; }
  std::pair<RowSums, Means> read(int64_t dim, bool grows);

  // Returns how many words the record of a table takes with the gradients of so many rows.
  static int64_t words_of(int64_t rows, int64_t dim, bool grows);
  // The same for this number of entries that are saved at a time.
  static int64_t words_of_entries(int64_t entries) { return kEntryWords * entries; }
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

  // Changes the ids of the next table that grows, unless they are already changed. Returns false if they are.
  // `change` has to save() each entry, of three words, before it changes it.
  template <class Change>
  bool change_ids(const Change& change) {
    if (next_ids_++ < changed_ids()) return false;
    change();
    keep_changes(next_ids_);
    return true;
  }
  void save(int64_t array, int64_t index, const int64_t* entry);
  // Ends a change outside of a step.
  void keep_changes() { keep_changes(changed_ids()); }
  // Gives the entries that were saved for a change that was not completed their former values.
  void take_back(std::span<int64_t* const> arrays);

 private:
  static constexpr int64_t kEntryWords = 5;  // the array, the index, and the words of the entry

  void set_writer();
  int64_t changed_ids() const;
  void keep_changes(int64_t changed_ids);
  bool begin_block(std::span<const RowArray> arrays, std::span<const int64_t> rows);
  void end_block();
  int64_t* state() const { return static_cast<int64_t*>(state_.data_ptr()); }
  int64_t* gradients() const { return static_cast<int64_t*>(gradients_.data_ptr()); }

  torch::Tensor state_;
  torch::Tensor gradients_;
  int64_t used_ = 0;        // words of the gradients that were written or read
  int64_t next_block_ = 0;  // of the step
  int64_t next_ids_ = 0;    // of the step: the tables whose ids are changed
};

}  // namespace tutti::embedding
