#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include <torch/types.h>

#include "tutti/comm/communicator.h"
#include "tutti/embedding/step_log.h"

namespace tutti::embedding {

// The memory in which rows are kept.
struct RowPlace {
  // Returns memory for so many numbers, and memory in place of smaller memory. Empty: any memory will do.
  std::function<torch::Tensor(int64_t elements, torch::ScalarType type)> allocate = {};
  std::function<torch::Tensor(const torch::Tensor& smaller, int64_t elements)> replace = {};
  bool has_all = false;   // not only the values of tables that do not grow are kept there
  bool has_rows = false;  // the memory has the rows of an owner already
};
// Returns a tensor for so many rows, which begins with these, in their place. The others have any values.
torch::Tensor enlarged(const RowPlace& place, const torch::Tensor& rows, int64_t count);

// The memory in which the workers of one host have the rows that they own, with all that belongs to them, and
// the records of their steps. All of these workers can use it. It has no name, and is freed with the last
// process that uses it, so the others have the rows of a worker that is lost. Not thread-safe.
class RowMemory {
 public:
  // `make_rows` makes rows in such a place, twice: at first to find how much memory they need. All workers
  // have to call this, and the other functions that allocate memory, with the same arguments.
  RowMemory(comm::SharedVectors& shared, int rank, const std::function<void(const RowPlace&)>& make_rows);
  void make_logs(size_t largest_row_bytes);
  // Makes room for so many words in the record of a step.
  void reserve(int64_t words);
  // Waits until all workers have copied what was in memory that was replaced.
  void end_replacements();

  // The memory of the rows of another owner, in the order in which it was allocated.
  RowPlace of(int owner) const;
  StepLog& log() { return log_of(rank_); }
  StepLog& log_of(int owner) { return logs_[static_cast<size_t>(owner)]; }
  int world() const { return static_cast<int>(logs_.size()); }

 private:
  std::vector<torch::Tensor> allocate(int64_t elements, torch::ScalarType type);
  std::vector<torch::Tensor> take(int64_t elements, torch::ScalarType type);
  RowPlace own();

  comm::SharedVectors& shared_;
  const int rank_;
  std::vector<torch::Tensor> pool_;  // [owner]; allocated at once, since that takes some time
  int64_t used_ = 0;                 // bytes of it
  std::vector<std::vector<torch::Tensor>> allocated_;  // [allocation][owner]
  // By allocation. If a worker is lost before the others have copied their rows, the former memory is used.
  std::map<size_t, std::vector<torch::Tensor>> replacements_;
  std::vector<StepLog> logs_;  // [owner]
};

}  // namespace tutti::embedding
