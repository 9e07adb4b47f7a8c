#pragma once

#include <vector>

#include "tools/bench/figures.h"
#include "tutti/comm/communicator.h"

namespace tutti::bench {

// Times the operations of a communicator, of float32 in the CPU's memory. Every rank makes one and calls the
// same.
class Collectives {
 public:
  // `seconds`: how long one row may take, roughly. There are at least five repetitions.
  Collectives(comm::Communicator& comm, double seconds) : comm_(comm), seconds_(seconds) {}

  // Whether the communicator can do it at all: in place, only where all ranks share memory.
  bool can(Operation operation) const;

  // A vector of about so many bytes: each rank's part of it has at least one element, and all have equally
  // many. The same on every rank.
  int64_t actual_bytes(Operation operation, int64_t bytes) const;

  // Checks what comes out once, which is a DataLoss that names the ranks where it is wrong, and then
  // measures.
  Row measure(Operation operation, int64_t bytes);

 private:
  struct Job;
  Job job_of(Operation operation, int64_t elements);
  torch::Tensor shared_vector(int64_t elements);
  void verify(const Job& job, Operation operation, int64_t bytes);
  int64_t agree_on_repetitions(double seconds_each);
  std::vector<double> time(const Job& job, int64_t repetitions);

  comm::Communicator& comm_;
  const double seconds_;
  torch::Tensor shared_;  // kept, and made anew where a longer one is asked for
};

}  // namespace tutti::bench
