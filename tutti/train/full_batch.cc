#include <algorithm>
#include <cmath>

#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/cluster/roles.h"
#include "tutti/lanes/lanes.h"
#include "tutti/lanes/sampler.h"
#include "tutti/params/parameters.h"
#include "tutti/params/plan.h"
#include "tutti/step/gradient_mean.h"
#include "tutti/train/model.h"
#include "tutti/train/replica.h"

// Model::fit() by L-BFGS, in which every evaluation of the loss covers all examples. Losses and gradients are
// added along the tree, so the bits do not depend on the number of workers.
namespace tutti {
namespace {

// Returns the examples of a worker's lanes, one batch per lane.
std::vector<Batch> batches_of(const data::Feed& feed, const LaneRange& own, int64_t lanes,
                              torch::Device device) {
  const std::vector<data::ExampleRange> ranges = feed.ranges(lanes);
  int64_t longest = (feed.size() + lanes - 1) / lanes;
  for (const data::ExampleRange& range : ranges) longest = std::max(longest, range.size());
  const data::Sampler sampler(
      feed.size(), {.order = data::Order::Sequential, .lanes = lanes, .batch = longest, .ranges = ranges});
  std::vector<Batch> batches;
  std::vector<int64_t> examples;
  for (int64_t lane = own.begin; lane < own.end; ++lane) {
    sampler.examples(0, lane, examples);
    batches.push_back(examples.empty() ? Batch() : feed.read(examples).to(device));
  }
  return batches;
}

// The loss over all examples, with its gradient.
class Objective {
 public:
  Objective(const Context& context, Replica& replica, const data::Feed& feed, comm::Communicator& comm,
            int64_t lanes)
      : replica_(replica),
        mean_(replica.parameters(), comm, lanes),
        batches_(batches_of(feed, mean_.lanes(), lanes, context.device())) {}

  torch::Tensor evaluate() {
    mean_.begin_step(evaluations_++);
    // Every evaluation draws the random numbers of step 0, and so computes the same function.
    for (int64_t lane = mean_.lanes().begin; lane < mean_.lanes().end; ++lane)
      replica_.run_lane(0, lane, batches_[static_cast<size_t>(lane - mean_.lanes().begin)], mean_,
                        [](int64_t, const Batch&, const LossOutput&) {});
    const GradientMean::Result result = mean_.finish();
    if (result.examples == 0) fail(ErrorKind::InvalidArgument, "the feed has no examples to train on");
    return result.loss_sum / static_cast<double>(result.examples);
  }
  int64_t evaluations() const { return evaluations_; }

 private:
  Replica& replica_;
  GradientMean mean_;
  const std::vector<Batch> batches_;
  int64_t evaluations_ = 0;
};

struct Found {
  double loss = 0;          // the final loss, over all examples
  int64_t evaluations = 0;  // of the loss and its gradient
};

Found search(Objective& objective, const Parameters& parameters, const torch::optim::LBFGSOptions& options,
             int64_t calls) {
  std::vector<torch::Tensor> trained;
  for (const Parameters::View& view : parameters.trained()) trained.push_back(view.tensor);
  torch::optim::LBFGS optimizer(std::move(trained), options);
  for (int64_t call = 0; call < calls; ++call) optimizer.step([&] { return objective.evaluate(); });
  const auto loss = objective.evaluate().item<double>();
  if (!std::isfinite(loss))
    fail(ErrorKind::InvalidArgument,
         "L-BFGS ended with a loss of {}: give LBFGSOptions a smaller lr, or "
         "line_search_fn(\"strong_wolfe\")",
         loss);
  return {loss, objective.evaluations()};
}

Found fit_full_batch(const Context& context, const Trainable& model, const data::Feed& feed,
                     const torch::optim::LBFGSOptions& options, int64_t calls, const Group& group) {
  // L-BFGS makes the updates, so the replica's optimiser is not used.
  Replica replica(model, torch::optim::SGDOptions(1),
                  {.seed = context.config().training.seed, .device = context.device()});
  Parameters& parameters = replica.parameters();
  comm::Communicator& comm = *group.communicator;
  if (comm.epochs() != nullptr && comm.epochs()->is_joining())
    fail(ErrorKind::PeerLost, "a worker that was started again cannot join an L-BFGS training");
  if (group.world > 1) {
    require_same_plan(context, comm, parameters.plan());
    require_same_kernels(context, comm);
    for (const Section& block : parameters.blocks()) comm.broadcast(block.values, 0).wait();
  }
  Found result;
  {
    Objective objective(context, replica, feed, comm, lanes_for(context, group));
    result = search(objective, parameters, options, calls);
  }
  // Moves the model out of the communicator's memory, since the model may live longer.
  parameters.move(
      [](int64_t elements, const torch::TensorOptions& type) { return torch::zeros({elements}, type); });
  return result;
}

}  // namespace

void Model::fit(const data::Feed& feed, const torch::optim::LBFGSOptions& optimizer,
                const ModelFitOptions& options, const TrainerOptions& trainer) {
  require_ready(options);
  if (context_.identity().is_evaluator)
    fail(ErrorKind::InvalidArgument,
         "{} has nothing to evaluate, since a fit by L-BFGS writes no checkpoints: start the job without an "
         "evaluator",
         context_.task().short_name());
  require_no_export(context_, "L-BFGS");
  if (has_servers(context_.cluster()) || context_.config().training.strategy == "in-graph")
    fail(ErrorKind::InvalidArgument,
         "L-BFGS does not work with parameter servers or a master, since they make one step per gradient: "
         "use --strategy allreduce");
  if (context_.config().training.audit > 0)
    fail(ErrorKind::InvalidArgument,
         "--audit {}: a fit by L-BFGS is not audited: leave the flag out, or use another optimiser",
         context_.config().training.audit);
  const Group all = trainer.group ? *trainer.group : connect(context_);
  std::optional<double> least;
  for (int64_t start = 0; start < options.restarts; ++start) {
    const auto instance = make_instance(feed, start);
    const Found result = fit_full_batch(context_, trainable(instance), feed, optimizer,
                                        std::max<int64_t>(1, options.steps), all.split(0));
    if (all.is_chief())
      context_.log().info("start {} of {}: loss {:.6g} after {} evaluations", start + 1, options.restarts,
                          result.loss, result.evaluations);
    if (least && !(result.loss < *least)) continue;
    least = result.loss;
    instance_ = instance;
  }
  // This trainer makes no steps; it only evaluates and predicts.
  RunConfig without_folder = context_.config();
  without_folder.checkpoints.logdir.clear();
  without_folder.checkpoints.resume = "never";
  TrainerOptions how{.group = all, .exports = trainer.exports};
  if (!how.exports.signature.function && !outputs_.empty()) how.exports.signature = signature(instance_);
  trainer_ = std::make_unique<Trainer>(context_.with(without_folder), trainable(instance_),
                                       torch::optim::SGDOptions(1), how);
  trainer_->set_trained();
}

}  // namespace tutti
