#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/cluster/context.h"
#include "tutti/params/lane_vectors.h"
#include "tutti/params/optimizer.h"
#include "tutti/ps/sync_step.h"
#include "tutti/rpc/arena.h"
#include "tutti/train/passive/workers.h"
#include "tutti/train/replica.h"
#include "tutti/train/trainable.h"

namespace tutti {

// The client of in-graph training: it holds the parameters, and passive workers compute with them what it
// asks for. A step by hand is three calls, with anything between them:
//
//   for (int w = 0; w < master.workers(); ++w) master.gradients(w, {batches[w]});
//   const Master::Mean mean = master.average();       // it is in parameters().grads()
//   master.apply();
//
// The sum is made along the tree over the lanes, so that the bits are those of any other way to make the
// step. Not thread-safe.
class Master {
 public:
  // A lane a worker, and parameters that begin as the module has them. The workers are the other tasks of the
  // cluster: servers (`tutti serve --allow-programs`, where the model has a script), or processes of this
  // program that follow (follow_master). Waits for them.
  Master(const Context& context, const Trainable& model, const OptimizerOptions& optimizer);
  // For a trainer: the replica outlives it, and begin() is called before anything else.
  Master(const Context& context, const Trainable& model, Replica& replica, std::shared_ptr<rpc::Arena> arena);
  // The workers may end, unless an exception ends this: then they wait for another master.
  ~Master();

  int workers() const { return workers_->count(); }
  Parameters& parameters() { return replica_->parameters(); }
  Optimizer& optimizer() { return replica_->optimizer(); }
  int64_t step() const { return step_; }

  // The worker begins to compute what its lanes give, with the parameters as they are. A batch a lane, in the
  // order of lanes_of(); one without examples counts for nothing.
  void gradients(int worker, std::vector<Batch> batches);
  LaneRange lanes_of(int worker) const { return workers_->lanes_of(worker); }

  // Waits for what was begun. Gradients and buffers are then the mean over all examples and lanes.
  struct Mean {
    int64_t examples = 0;
    torch::Tensor loss_sum = {};  // of all examples, float64; undefined where there were none
    std::vector<std::optional<LossOutput>> outputs = {};  // by lane, where there was data
    Wishes wishes = {};                                   // of the workers

    double loss() const { return loss_sum.item<double>() / static_cast<double>(examples); }
  };
  Mean average();
  // Updates the parameters with the gradients that there are; the next step begins.
  void apply();

  // For a trainer.
  void begin(const passive::Beginning& beginning, int64_t step);
  passive::Workers& all() { return *workers_; }

 private:
  std::exception_ptr wait_for_all() noexcept;

  const Context& context_;
  const Trainable model_;
  const int exceptions_ = std::uncaught_exceptions();  // when this was made
  const std::shared_ptr<rpc::Arena> arena_;
  std::unique_ptr<Replica> own_;
  Replica* replica_;
  std::optional<LaneVectors> vectors_;  // once begun, like all below
  std::optional<ps::SyncStep> sum_;
  std::vector<bool> asked_;  // by worker, in this step
  std::vector<comm::Work> under_way_;
  int64_t step_ = 0;
  std::unique_ptr<passive::Workers> workers_;  // last, so that nothing is under way any more
};

}  // namespace tutti
