#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/base/flags.h"
#include "tutti/comm/communicator.h"
#include "tutti/comm/executor.h"
#include "tutti/params/buckets.h"
#include "tutti/params/control_word.h"
#include "tutti/params/summation/summation.h"

namespace tutti {

struct ReducerOptions : SummationOptions {
  bool fast = false;  // in whatever order the communicator adds
};
// As --reduce, --wire-precision, --error-feedback and --optimizer-state say.
ReducerOptions reducer_options(const Flags& flags);
// "reduce tree", "reduce tree, bfloat16 on the wire, scattered".
std::string to_string(const ReducerOptions& options);

// Adds what the lanes of a step give, over all workers: TreeSum for the lanes of this one, and the upper part
// of the same tree across them (Summation). So the sums have the same bits whoever has which lanes, and
// whatever carries them.
//
// Beside the buckets there are a few float64 numbers, such as the loss and the count of examples, which every
// worker adds for itself.
//
// A step is begin(), for each lane of this worker add() or skip(), then finish(). Before the last add() a
// worker may open(): it knows the numbers of the lane, but its vectors are still being filled; then what is
// ready() is sent while the rest is computed. The workers open() as they like; from then on until finish()
// vectors and communicator are in use by another thread.
//
// A step that fails before it is_open() can be begun again. Afterwards the others have a part of it, and it
// cannot: the communicator is abandoned by begin(), unless it has failed by itself, and begin() throws why,
// always. Not thread-safe.
class Reducer {
 public:
  // What a vector is divided by when it has been summed, given the sums of the numbers; 0: by nothing.
  using Divisor = std::function<double(const Bucket& bucket, const torch::Tensor& numbers)>;

  // The communicator outlives the reducer. Every worker makes one, with buckets of the same sizes.
  Reducer(comm::Communicator& comm, Buckets buckets, torch::Tensor numbers, int64_t lanes, Divisor divisor,
          const ReducerOptions& options = {});
  ~Reducer();

  LaneRange block() const { return block_; }
  const Buckets& buckets() const { return buckets_; }
  // "tree" or "fast".
  std::string name() const { return summation_ ? summation_->name() : "tree"; }
  // Whether it is of use to open().
  bool overlaps() const { return summation_ && summation_->overlaps(); }

  // Forgets a step that was broken off.
  void begin(int64_t step, const Wishes& wishes);
  // Vectors and numbers hold what the next lane gives, or it has no data.
  void add();
  void skip();

  // The numbers hold what a lane of this worker gives. False, and nothing happens, where that is not its
  // last, or it is of no use.
  bool open();
  // From open() on, until finish() has succeeded.
  bool is_open() const { return opened_; }
  // So does this bucket. In any order, once each; those of which one hears nothing are taken at add().
  void ready(size_t bucket);

  // The sums of all lanes are then in the vectors and numbers of every worker, or, where gradients are
  // scattered, its own part. All have to be at the same step and have had all their lanes, else
  // InvalidArgument.
  ReduceOutcome finish();

  // Gives every worker's part of the buckets to all: of vectors as long as those of the buckets.
  void spread(const std::vector<torch::Tensor>& vectors);

 private:
  // One bucket in one step.
  struct Progress {
    TreeSum sum;
    bool added = false;  // the last lane
    std::optional<Subtrees> subtrees = {};
  };

  TreeSum make_sum(TreeSum::Vectors vectors, int64_t lanes, bool fast) const;
  void add_bucket(size_t bucket);
  void start(std::function<void()> job);
  void start_words();
  void start_ready();
  void give_up();
  void wait_for_jobs();
  ReduceOutcome finish_alone();
  void agree_on_order();

  comm::Communicator& comm_;
  const Buckets buckets_;
  const torch::Tensor numbers_;
  const Divisor divisor_;
  const LaneRange block_;
  TreeSum numbers_sum_;
  std::vector<Progress> progress_;  // [bucket]
  ControlWord word_;
  std::unique_ptr<Summation> summation_;  // null in a world of one

  // The order in which buckets are sent: at first from the back, where the backward pass begins; after the
  // first step, the order in which rank 0 had them ready.
  std::vector<size_t> order_;
  std::vector<size_t> seen_;
  bool agreed_ = false;

  // Of this step.
  int64_t step_ = 0;
  Wishes wishes_;
  int64_t lanes_done_ = 0;
  bool opened_ = false;
  size_t next_ = 0;  // in the order: what is to be sent
  // Written by jobs.
  ReduceOutcome outcome_;
  torch::Tensor totals_;

  std::vector<comm::Work> jobs_;  // of this step; those of one that failed stay
  comm::Executor executor_;       // last, so that it ends first
};

}  // namespace tutti
