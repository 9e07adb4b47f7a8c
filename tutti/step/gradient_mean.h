#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/cluster/context.h"
#include "tutti/comm/communicator.h"
#include "tutti/params/optimizer.h"
#include "tutti/params/parameters.h"
#include "tutti/step/audited_range.h"
#include "tutti/step/lane_sum.h"
#include "tutti/step/reducer.h"

namespace tutti {

class BackwardWatch;

// Computes the mean gradient of a step over the examples of all lanes of all workers, and the mean of the
// floating buffers over the lanes. Other buffers are as a worker's last lane leaves them: the same everywhere
// if they count batches, and not shared if they depend on the data. A step is begin_step(); for each lane of
// this worker either begin_lane(), forward, begin_backward(), one backward pass, add(), or skip(); then
// finish(). If the reducer overlaps, gradients are sent while the last backward pass still runs: gradients
// and communicator are then in use from its begin_backward() until finish(). A lane or a step that fails
// before that can be begun again, but not after (see Reducer).
//
// With ReducerOptions::nan_guard, gradients on the CPU that are not finite are not sent:
// the backward pass or add() throws an InvalidArgument with the name of the first parameter and this worker's
// rank, and abandons the communicator, so that all workers fail with this text before they change a weight.
// Not thread-safe.
class GradientMean final : public LaneSum {
 public:
  struct Result {
    int64_t examples = 0;         // 0: no lane had any, and nothing has changed
    torch::Tensor loss_sum = {};  // over all examples: one float64 on the device; undefined if not known
    Wishes wishes;
  };

  // Both must outlive this. If the workers share memory, moves the parameters into it unless they are there
  // already; so the parameters of all workers must be known to match (require_same_plan). Throws
  // InvalidArgument if a parameter has been frozen or unfrozen since the parameters were made.
  GradientMean(Parameters& parameters, comm::Communicator& comm, int64_t lanes,
               const ReducerOptions& options = {});
  ~GradientMean() override;

  LaneRange lanes() const { return reducer_.own_lanes(); }
  std::string name() const { return reducer_.sums().name(); }
  double weight(int64_t examples) const override { return vectors_.weight(examples); }

  // Begins a step. If the previous step was broken off, restores the buffers to their values before it,
  // except with one lane in all, where they keep the values from its forward pass. The learning rate is
  // compared with the rate of the other workers; kNoRate is not compared. Throws InvalidArgument if a
  // parameter has been frozen or unfrozen since the parameters were made.
  void begin_step(int64_t step, const Wishes& wishes = {}, double learning_rate = kNoRate);
  // Audits a lane in the step that has begun: nothing is sent before finish(), and lane_hashes() has the
  // hashes of what the lane computes. With `copies`, the first lane that follows is another worker's, which
  // is computed for the comparison only: it is not added, and leaves nothing behind. The sum of a range of
  // gradients that these random bits choose is computed again as well (audited_sum()).
  void audit(int64_t lane, bool copies, uint64_t bits);
  struct LaneHashes {
    std::string own = {};   // of the lane as this worker's; "" if it has no examples, or is not
    std::string copy = {};  // of the lane as it was computed for the comparison
  };
  const LaneHashes& lane_hashes() const { return hashes_; }
  // After finish(). Null if the step is not audited, if no lane had data, if nothing is trained here, or if
  // the sums have other bits than along the tree (ReducerOptions::fast, wire).
  AuditedSum* audited_sum() { return audited_sum_ ? &*audited_sum_ : nullptr; }
  void begin_lane() override;
  void begin_backward(const torch::Tensor& loss, int64_t examples) override;
  bool is_sending() const override { return reducer_.is_open(); }
  void add() override;
  void skip() override;
  // Ends a step that was broken off: the buffers get their values from before it.
  void break_off();
  // Ends a step whose gradients will not be used, after finish(): the buffers get their values from before
  // it.
  void take_back();
  // Called after the last lane. Leaves the means in the vectors of every worker, or only its own slices of
  // them if gradients are scattered. All workers have to be at the same step.
  Result finish();

  // The residuals of rounding to --wire-precision are part of the run's state: without them the next
  // gradients differ. A checkpoint stores them beside the optimiser's state, in slots that each belong to one
  // worker. Every worker has to call these functions, between two steps (residuals.cc).
  //
  // Adds the residuals of all workers to `state` at rank 0. Does nothing if there are none.
  void gather_residuals(Optimizer::State& state) const;
  // Removes the residuals from `state` at rank 0 and distributes them to the workers. They are valid for one
  // number of workers: with another number they are dropped, and a warning is logged.
  void restore_residuals(const Context& context, Optimizer::State& state);

  // Limits the norm of the mean gradient; returns the norm before. It includes gradients that are elsewhere,
  // the sum of whose squares is given.
  double clip_norm(double largest, double other_squares = 0);
  // If gradients are scattered, gives each worker's updated slices of the parameters to all. With `commit`,
  // which needs shared memory, all workers have made the step afterwards or, after an error, none.
  void share_update(StepCommit* commit = nullptr);

 private:
  void share_counters(const ReduceOutcome& outcome);
  void before_gradient(size_t parameter) const;
  void on_gradient(size_t parameter);
  void require_finite(size_t bucket) const;
  void drop_copy();

  Parameters& parameters_;
  comm::Communicator& comm_;
  const bool scatter_;
  const bool checks_;  // whether gradients are finite, before they are sent
  LaneVectors vectors_;
  int64_t lanes_added_ = 0;  // in this step, those without examples included
  struct Counted {
    int64_t examples = 0;
    bool without_loss = false;
  };
  Counted own_;              // the sum over the lanes that were added in this step
  Counted of_lane_;          // of the lane whose backward pass is the last
  bool lane_begun_ = false;  // in a step that is not made yet: `vectors_` has saved the buffers
  int64_t step_ = 0;
  std::optional<int64_t> audited_;  // the lane, in this step
  bool copies_ = false;             // the next lane is the copy
  LaneHashes hashes_;
  Reducer reducer_;
  std::optional<AuditedSum> audited_sum_;

  // While a backward pass is watched: which gradients are complete, and how many each bucket still waits for.
  std::vector<bool> heard_;
  std::vector<int> missing_;
  bool watching_ = false;
  std::unique_ptr<BackwardWatch> watch_;  // null if the reducer does not overlap
};

// Returns an allocator of memory that all workers of the host share; empty if there is none. If there is such
// memory, gradients on this device have to be in it.
Allocate shared_allocator(comm::Communicator& comm, torch::Device device);

// Throws InvalidArgument unless the loss is a single real number.
void require_number(const torch::Tensor& loss);
// Throws InvalidArgument unless it also depends on a trained parameter.
void require_mean(const torch::Tensor& loss);
// Throws InvalidArgument if this is not a limit for the norm of gradients; 0 is none.
void require_clip_norm(double clip_norm);

}  // namespace tutti
