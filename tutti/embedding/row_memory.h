#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include <torch/types.h>

#include "tutti/comm/communicator.h"
#include "tutti/embedding/step_log.h"

namespace tutti::embedding {

// Where rows are kept.
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
  RowMemory(comm::SharedVectors& shared, int rank);

  // Functions that allocate memory have to be called by all workers, with the same arguments.
  RowPlace own();
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

  comm::SharedVectors& shared_;
  const int rank_;
  std::vector<std::vector<torch::Tensor>> allocated_;  // [allocation][owner]
  // By allocation. If a worker is lost before the others have copied their rows, the former memory is used.
  std::map<size_t, std::vector<torch::Tensor>> replacements_;
  std::vector<StepLog> logs_;                          // [owner]
};

}  // namespace tutti::embedding
