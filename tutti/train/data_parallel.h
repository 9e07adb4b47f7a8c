#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tutti/step/lane_sum.h"
#include "tutti/train/strategy.h"

namespace tutti {

class AllReduce;

// A way of training in which each worker computes its lanes in its own process: alone, by all-reduce, or with
// parameter servers. A Trainer calls step(), which reads the batches of the lanes from a queue. A loop of the
// program's own computes its lanes between begin_step() and end_step() (DistributedOptimizer).
class DataParallel : public Strategy {
 public:
  // Begins step number `step` (from 0). The caller passes each lane of this worker, in order, to the sum.
  virtual LaneSum& begin_step(int64_t step, const Wishes& wishes) = 0;
  // Ends the step after the last lane, and updates the parameters.
  virtual StepResult end_step() = 0;
  // The number of updates made so far, including those before a resume.
  virtual int64_t updates() const = 0;
  // Returns the lane of another worker that this one has to pass to the sum of this step as well, before its
  // own lanes, so that the results can be compared (--audit).
  virtual std::optional<int64_t> lane_to_audit(int64_t /*step*/) const { return {}; }

  StepRange begin_steps(int64_t step, int64_t end, int64_t feed_begin) final;
  StepResult step(int64_t step, const Wishes& wishes, data::BatchQueue& queue,
                  const LaneObserver& observe) final;

 protected:
  // See begin_steps().
  virtual StepRange steps_of_feed(int64_t step, int64_t end, int64_t /*feed_begin*/) { return {step, end}; }

 private:
  void run_audited(int64_t step, int64_t lane, const Batch& batch, LaneSum& sum);
  void run_lanes(int64_t step, data::BatchQueue& queue, LaneSum& sum, const LaneObserver& observe);
  std::vector<Batch> next_batches(data::BatchQueue& queue, int64_t step);
  void skip_step(int64_t step, data::BatchQueue& queue);

  int64_t feed_begin_ = 0;  // the step at which the feed began
  int64_t steps_left_ = 0;
  std::optional<std::vector<Batch>> ahead_;  // of the next step, if the rows of its tables were asked for
};

// Makes the strategy of --strategy, which is not in-graph, for a loop of the program's own that has made
// these parameters. Context and parameters must outlive it. `module` is null if it has no sharded embeddings.
// Sets `all_reduce` to the strategy if that is an AllReduce.
std::unique_ptr<DataParallel> make_strategy(const Context& context,
                                            const std::shared_ptr<torch::nn::Module>& module,
                                            Parameters& parameters, const OptimizerOptions& optimizer,
                                            const StrategyOptions& options, AllReduce** all_reduce);

}  // namespace tutti
