#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/comm/communicator.h"
#include "tutti/comm/sliced_sum.h"
#include "tutti/lanes/lanes.h"
#include "tutti/params/optimizer.h"
#include "tutti/params/parameters.h"
#include "tutti/step/buckets.h"
#include "tutti/step/tree_sum.h"

namespace tutti {

// Elements of a trained parameter whose sum over all lanes, and whose update, are computed again (--audit).
struct AuditedRange {
  size_t parameter = 0;              // index in Parameters::trained()
  comm::ElementRange elements = {};  // of the parameter's block
};

// The largest number of elements of a range.
inline constexpr int64_t kAuditedElements = 8192;
// Draws a range from these random bits: each element of the parameters is as likely as any other. There must
// be a trained parameter.
AuditedRange draw_range(const Parameters& parameters, uint64_t bits);

// A result that every rank has computed again.
struct Recomputed {
  std::string name;        // "the sum of the gradient of conv1.weight"
  int maker = -1;          // the rank that has made the result for all; -1: not known, or each made its own
  std::string got = {};    // the hash of the result that this rank has; "" if it has none
  std::string again = {};  // the hash of the result that this rank has computed again
};

// Adds the lanes of a range again on every rank, along the same tree: what each rank has added before it was
// sent, and the mean of all lanes. The ranks exchange the lanes for that. Not thread-safe.
class AuditedSum {
 public:
  // The vectors of `bucket` have the range. With `scatters` each rank receives its slice of the bucket only.
  // All references, and `numbers`, must outlive this. Every rank makes one in the same step.
  AuditedSum(comm::Communicator& comm, const Parameters& parameters, const Bucket& bucket,
             const AuditedRange& range, int64_t lanes, bool scatters, torch::Tensor numbers);

  // add() takes the next lane of this rank from gradients and numbers, before it is added to other lanes;
  // skip() says that the lane has no data.
  void add();
  void skip() { ++lanes_added_; }
  // Takes what this rank has added of the bucket, before it is sent.
  void take_branches(const std::vector<TreeSum::Subtree>& branches);
  // Called by all ranks when they have received the sums, if a lane had data: adds the lanes again.
  std::vector<Recomputed> compute_again();

  bool is_in(const Bucket& bucket) const { return &bucket == &bucket_; }
  const AuditedRange& range() const { return range_; }
  bool scatters() const { return scatters_; }
  // By rank: the elements of the range that the rank adds for all.
  const std::vector<comm::ElementRange>& parts() const { return parts_; }
  // The mean gradient, computed again, in host memory.
  const torch::Tensor& mean() const { return mean_; }

 private:
  torch::Tensor numbers_of(int64_t lane) const;
  torch::Tensor values_of(int64_t lane) const;
  std::vector<TreeSum::Subtree> add_again(const LaneRange& range) const;
  std::string hash_of(const std::vector<TreeSum::Subtree>& branches, int64_t offset) const;

  comm::Communicator& comm_;
  const Parameters& parameters_;
  const Bucket& bucket_;
  const AuditedRange range_;
  const bool scatters_;
  const torch::Tensor numbers_;
  const std::vector<LaneRange> lanes_;  // by rank
  const std::vector<comm::ElementRange> parts_;
  const torch::Tensor gradients_;  // the range of them
  const int64_t row_bytes_;
  const torch::Tensor rows_;  // of all lanes: whether there is data, numbers and gradients
  int64_t lanes_added_ = 0;
  std::string branches_;  // the hash
  torch::Tensor mean_;
};

// Makes the update of a range again on every rank, from copies of its values and slots. If the optimiser's
// state is sharded, the ranks exchange the slots for that. Not thread-safe.
class AuditedUpdate {
 public:
  // Called by all ranks before the optimiser's step, which must not be a ReplicatedOptimizer. Makes the
  // update with the mean of `sum` times the factor. All references must outlive this.
  AuditedUpdate(comm::Communicator& comm, const Parameters& parameters, Optimizer& optimizer,
                const AuditedSum& sum, double factor);

  // Returns what this rank has after the optimiser's step.
  std::vector<Recomputed> results() const;
  // Called by all ranks: each takes over values and slots as rank `from` has computed them again.
  void repair(int from);

 private:
  Optimizer::State slots_of_all() const;
  comm::ElementRange own_part() const;

  comm::Communicator& comm_;
  const Parameters& parameters_;
  Optimizer& optimizer_;
  const AuditedSum& sum_;
  const comm::ElementRange range_;  // of the block
  const torch::Tensor values_;      // the range of them
  const std::vector<std::string> slots_;
  Section copy_;
  std::unique_ptr<Optimizer> again_;
};

}  // namespace tutti
