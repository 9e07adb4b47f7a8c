#pragma once

#include <vector>

#include "tools/bench/figures.h"
#include "tutti/comm/communicator.h"

namespace tutti::bench {

// Measures the operations of a communicator on float32 in the CPU's memory. Every rank must create one and
// make the same calls.
class Collectives {
 public:
  // `seconds` is the approximate time per row. There are at least five repetitions.
  Collectives(comm::Communicator& comm, double seconds) : comm_(comm), seconds_(seconds) {}

  // Returns true if the communicator supports the operation. In place, all ranks must share memory.
  bool can(Collective operation) const;

  // Returns a size near `bytes` that gives every rank a part of equal size with at least one element. The
  // result is the same on every rank.
  int64_t actual_bytes(Collective operation, int64_t bytes) const;

  // Checks the result once and throws a DataLoss that names the ranks where it is wrong. Then
  // measures.
  Row measure(Collective operation, int64_t bytes);

 private:
  struct Job;
  Job job_of(Collective operation, int64_t elements);
  torch::Tensor shared_vector(int64_t elements);
  void verify(const Job& job, Collective operation, int64_t bytes);
  int64_t agree_on_repetitions(double seconds_each);
  std::vector<double> time(const Job& job, int64_t repetitions);

  comm::Communicator& comm_;
  const double seconds_;
  torch::Tensor shared_;  // kept, and replaced if a longer one is needed
};

}  // namespace tutti::bench
