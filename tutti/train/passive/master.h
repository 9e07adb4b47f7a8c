#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/cluster/context.h"
#include "tutti/params/lane_sum.h"
#include "tutti/params/optimizer.h"
#include "tutti/ps/sync_step.h"
#include "tutti/rpc/arena.h"
#include "tutti/train/passive/workers.h"
#include "tutti/train/replica.h"
#include "tutti/train/trainable.h"

namespace tutti {

// The client of in-graph training: it holds the parameters, and passive workers compute gradients for it on
// request. A step by hand is three calls, and the program may do other things between them:
//
//   for (int w = 0; w < master.workers(); ++w) master.gradients(w, {batches[w]});
//   const Master::Mean mean = master.average();       // the gradients are in parameters().grads()
//   master.apply();
//
// Gradients are summed along the tree over the lanes, so the bits are the same as with any other strategy.
// Not thread-safe.
class Master {
 public:
  // One lane per worker; the parameters start with the module's values. The workers are the other tasks of
  // the cluster: servers (`tutti serve --allow-programs`, if the model has a script), or processes of this
  // program that call follow_master(). Waits until they are connected.
  Master(const Context& context, const Trainable& model, const OptimizerOptions& optimizer);
  // For a trainer: the replica must outlive the master, and begin() must be called before anything else.
  Master(const Context& context, const Trainable& model, Replica& replica, std::shared_ptr<rpc::Arena> arena);
  // Lets the workers end, unless the destructor runs because of an exception: then they wait for another
  // master.
  ~Master();

  int workers() const { return workers_->count(); }
  Parameters& parameters() { return replica_->parameters(); }
  Optimizer& optimizer() { return replica_->optimizer(); }
  int64_t step() const { return step_; }

  // Asks the worker to compute the gradients of its lanes with the current parameters; does not wait for
  // them. Takes one batch per lane, in the order of lanes_of(); a batch without examples is ignored.
  void gradients(int worker, std::vector<Batch> batches);
  LaneRange lanes_of(int worker) const { return workers_->lanes_of(worker); }

  // Waits for all gradients that were requested. Afterwards gradients and buffers are the means over all
  // examples and lanes.
  struct Mean {
    int64_t examples = 0;
    torch::Tensor loss_sum = {};  // over all examples, float64; undefined if there were none
    std::vector<std::optional<LossOutput>> outputs = {};  // by lane; empty for lanes without data
    Wishes wishes = {};                                   // of the workers

    double loss() const { return loss_sum.item<double>() / static_cast<double>(examples); }
  };
  Mean average();
  // Updates the parameters with the current gradients and begins the next step.
  void apply();

  // For a trainer.
  void begin(const passive::Beginning& beginning, int64_t step);
  passive::Workers& all() { return *workers_; }

 private:
  std::exception_ptr wait_for_all() noexcept;

  const Context& context_;
  const Trainable model_;
  const int exceptions_ = std::uncaught_exceptions();  // at construction
  const std::shared_ptr<rpc::Arena> arena_;
  std::unique_ptr<Replica> own_;
  Replica* replica_;
  std::optional<LaneVectors> vectors_;  // set by begin(), like all below
  std::optional<ps::SyncStep> sum_;
  std::vector<bool> asked_;  // by worker, in this step
  std::vector<comm::Work> under_way_;
  int64_t step_ = 0;
  std::unique_ptr<passive::Workers> workers_;  // last member, so that its requests end first
};

}  // namespace tutti
