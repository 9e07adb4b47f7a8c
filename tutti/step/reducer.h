#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <torch/types.h>

#include "tutti/comm/communicator.h"
#include "tutti/step/bucket_sums.h"
#include "tutti/step/control_word.h"
#include "tutti/step/tree_sum.h"
#include "tutti/transport/executor.h"

namespace tutti {

// Sums the results of all lanes of a step over all workers: TreeSum adds the lanes of this worker, and the
// communicator the upper part of the same tree across workers. So the sums have the same bits for any
// distribution of the lanes to workers and any transport. If workers share memory, the vectors must be in it.
//
// Besides the buckets there are a few float64 numbers, such as the loss and the count of examples, which
// every worker adds for itself.
//
// A step is begin(), for each lane of this worker add() or skip(), then finish(). Before the last add() a
// worker may call open(), when the numbers of the lane are known but its vectors are still being filled: then
// each bucket is sent as soon as it is ready(). Each worker decides for itself whether to call open(). From
// then until finish(), vectors and communicator are in use by another thread.
//
// A step that fails before it is open can be begun again. After that the other workers have received a part
// of it, and begin() cannot restart it: it abandons the communicator, unless that has failed already, and
// throws the reason, also at every later call. Not thread-safe.
class Reducer {
 public:
  using Divisor = BucketSums::Divisor;

  // The communicator must outlive the reducer. Every worker makes one, with buckets of the same sizes.
  Reducer(comm::Communicator& comm, Buckets buckets, torch::Tensor numbers, int64_t lanes, Divisor divisor,
          const ReducerOptions& options = {});

  LaneRange own_lanes() const { return own_lanes_; }
  const Buckets& buckets() const { return buckets_; }
  BucketSums& sums() { return sums_; }
  const BucketSums& sums() const { return sums_; }
  int64_t all_lanes() const { return lanes_; }
  // Returns true if all sums have the bits of the tree over all lanes.
  bool is_exact() const { return (!fast_ || comm_.world() == 1) && !sums_.rounds(); }
  // Returns true if calling open() can overlap communication with computation.
  bool overlaps() const { return sums_.overlap(); }

  // Begins a step and forgets a step that was broken off. `learning_rate` is the one with which this worker
  // will use the sums; it is compared with the rate of the other workers, unless it is kNoRate.
  void begin(int64_t step, const Wishes& wishes, double learning_rate = kNoRate);
  // add() takes the results of the next lane from vectors and numbers; skip() says that the lane has no data.
  void add();
  void skip();

  // Begins to send during the worker's last lane, whose numbers are ready. Returns false and does nothing if
  // this is not the last lane, or if overlaps() is false.
  bool open();
  // Returns true from open() until finish() has succeeded.
  bool is_open() const { return opened_; }
  // Marks a bucket as complete, in any order, each once. add() takes those that were not marked.
  void ready(size_t bucket);

  // Leaves the sums of all lanes in the vectors and numbers of every worker or, if gradients are scattered,
  // each worker's own slices. Throws InvalidArgument if the workers are not at the same step, if lanes of
  // this worker are missing, or if learning rates differ. Unless the step is open, passes the sums of this
  // worker's lanes in each bucket to `see`, before they are sent.
  using SeeSums = std::function<void(size_t bucket, const std::vector<TreeSum::Subtree>& sums)>;
  ReduceOutcome finish(const SeeSums& see = {});

 private:
  // One bucket in one step.
  struct Progress {
    TreeSum sum;
    bool complete = false;  // the last lane has been added
  };

  using Tensors = std::vector<torch::Tensor>;

  TreeSum make_sum(Tensors vectors, int64_t lanes, std::vector<Tensors> waiting_room = {}) const;
  void add_bucket(size_t bucket);
  void start(std::function<void()> job);
  void exchange_control_words();
  void start_ready();
  void sum(size_t begin, size_t end);
  void give_up();
  void wait_for_jobs();
  void finish_buckets(const SeeSums& see);
  ReduceOutcome finish_alone();
  void agree_on_order();

  comm::Communicator& comm_;
  const Buckets buckets_;
  const torch::Tensor numbers_;
  const bool fast_;  // ReducerOptions::fast
  const int64_t lanes_;
  const LaneRange own_lanes_;
  TreeSum numbers_sum_;
  std::vector<Progress> progress_;  // [bucket]
  ControlWord control_;
  BucketSums sums_;

  // The order in which buckets are sent: at first from back to front, since the backward pass begins at the
  // back; after the first step, the order in which they were ready on rank 0.
  std::vector<size_t> order_;
  std::vector<size_t> seen_;
  bool agreed_;

  // The state of the current step.
  int64_t step_ = 0;
  Wishes wishes_;
  double learning_rate_ = kNoRate;
  int64_t lanes_done_ = 0;
  bool opened_ = false;
  size_t next_ = 0;  // index in order_ of the next bucket to send
  // Written by jobs.
  ReduceOutcome outcome_;
  torch::Tensor totals_;

  std::vector<comm::Work> jobs_;  // of this step; those of a failed step stay
  comm::Executor executor_;       // last member, so that it is destroyed first
};

}  // namespace tutti
