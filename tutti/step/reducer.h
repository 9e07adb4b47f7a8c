#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/base/config.h"
#include "tutti/comm/communicator.h"
#include "tutti/comm/executor.h"
#include "tutti/step/buckets.h"
#include "tutti/step/control_word.h"
#include "tutti/step/rounding.h"
#include "tutti/step/tree_sum.h"

namespace tutti {

struct ReducerOptions {
  bool fast = false;          // add in any order that the communicator chooses
  bool scatter = false;       // give each worker only its own part of the sum of gradients
  RoundingOptions wire = {};  // ignored if it is fast, or if all workers share memory
  // For GradientMean: refuse to send gradients that are not finite.
  bool nan_guard = false;
};
// Returns the options that --reduce, --wire-precision, --error-feedback, --optimizer-state and --nan-guard
// set.
ReducerOptions reducer_options(const RunConfig& config);
// "reduce tree", "reduce tree, bfloat16 on the wire, scattered".
std::string to_string(const ReducerOptions& options);

// Returns the memory that the workers of this host share; nullptr if they share none, or if the vectors are
// on a device other than the CPU.
comm::SharedVectors* shared_by(comm::Communicator& comm, torch::Device device);

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
  // Returns the divisor of a summed vector, given the sums of the numbers; 0: no division.
  using Divisor = std::function<double(const Bucket& bucket, const torch::Tensor& numbers)>;

  // The communicator must outlive the reducer. Every worker makes one, with buckets of the same sizes.
  Reducer(comm::Communicator& comm, Buckets buckets, torch::Tensor numbers, int64_t lanes, Divisor divisor,
          const ReducerOptions& options = {});
  ~Reducer();

  LaneRange block() const { return block_; }
  const Buckets& buckets() const { return buckets_; }
  // "tree", "tree, bfloat16 on the wire" or "fast".
  std::string name() const;
  // Returns true if calling open() can overlap communication with computation. If all workers share memory,
  // one sync point before and one after all sums take less time.
  bool overlaps() const { return comm_.world() > 1 && (memory_ == nullptr || comm_.shared() == nullptr); }

  // Begins a step and forgets a step that was broken off. `learning_rate` is the one with which this worker
  // will use the sums; it is compared with that of the other workers, unless it is kNoRate.
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
  // each worker's own part. Throws InvalidArgument if the workers are not at the same step, if lanes of this
  // worker are missing, or if learning rates differ.
  ReduceOutcome finish();

  // Access to the residuals of rounding; nullopt without rounding or error feedback. May be called only
  // between two steps that succeeded.
  std::optional<Residuals> residuals() const;
  // Sets the residuals of this worker, saved with the same rank and number of workers.
  void set_residuals(const Residuals& residuals);

  // Distributes every worker's part of the buckets to all. The vectors are as long as those of the buckets.
  void spread(const std::vector<torch::Tensor>& vectors);

 private:
  // One bucket in one step.
  struct Progress {
    TreeSum sum;
    bool complete = false;  // the last lane has been added
  };

  using Tensors = std::vector<torch::Tensor>;

  TreeSum make_sum(Tensors vectors, int64_t lanes, std::vector<Tensors> waiting_room = {}) const;
  void prepare_sums(int64_t lanes);
  comm::SlicedSum sum_over(const Bucket& bucket, const std::vector<Tensors>& sections, int here) const;
  void add_bucket(size_t bucket);
  void start(std::function<void()> job);
  void start_words();
  void start_ready();
  void sum(size_t begin, size_t end);
  void give_up();
  void wait_for_jobs();
  ReduceOutcome finish_alone();
  void agree_on_order();

  comm::Communicator& comm_;
  const Buckets buckets_;
  const torch::Tensor numbers_;
  const Divisor divisor_;
  const ReducerOptions options_;
  const LaneRange block_;
  TreeSum numbers_sum_;
  std::vector<Progress> progress_;  // [bucket]
  ControlWord word_;
  comm::SharedVectors* const memory_;   // that of the workers of this host; null if there is none
  std::vector<comm::SlicedSum> sums_;   // [bucket]
  std::optional<RoundedSums> rounded_;  // empty if nothing is rounded

  // The order in which buckets are sent: at first from back to front, since the backward pass begins at the
  // back; after the first step, the order in which they were ready on rank 0.
  std::vector<size_t> order_;
  std::vector<size_t> seen_;
  bool agreed_ = false;

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
