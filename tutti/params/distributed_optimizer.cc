#include "tutti/params/distributed_optimizer.h"

#include <utility>

#include <fmt/format.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/comm/connect.h"
#include "tutti/params/agreement.h"
#include "tutti/params/module_group.h"

namespace tutti {
namespace {

// The vectors are moved before anybody holds on to them.
Parameters& in_shared_memory(Parameters& parameters, comm::Communicator& comm) {
  if (const Allocate allocate = shared_allocator(comm, parameters.device())) parameters.move(allocate);
  return parameters;
}

int64_t lanes_for(const Context& context, const DistributedOptimizerOptions& options, int world) {
  if (options.lanes > 0) return options.lanes;
  return context.flags().lanes > 0 ? context.flags().lanes : world;
}

// What this worker updates.
std::vector<Stretch> updated(const Parameters& parameters, const comm::Communicator& comm,
                             const ReducerOptions& options) {
  return options.scatter ? parts_of(parameters, comm.rank(), comm.world()) : parameters.blocks();
}

}  // namespace

DistributedOptimizer::DistributedOptimizer(const Context& context, Parameters& parameters,
                                           const OptimizerOptions& optimizer,
                                           const DistributedOptimizerOptions& options)
    : parameters_(parameters),
      options_(options),
      reducer_options_(options.reducer ? *options.reducer : reducer_options(context.flags())),
      drop_remainder_(context.flags().drop_remainder),
      comm_(options.communicator ? options.communicator : comm::connect(context)),
      all_lanes_(lanes_for(context, options, comm_->world())),
      optimizer_(updated(in_shared_memory(parameters, *comm_), *comm_, reducer_options_), optimizer),
      timeline_file_(context, *comm_) {
  std::vector<std::string> plan = plan_of(parameters, optimizer);
  plan.push_back(fmt::format("lanes {}", all_lanes_));
  plan.push_back(fmt::format("clip_norm {}", options.clip_norm));
  plan.push_back(to_string(reducer_options_));
  require_same_plan(*comm_, plan);
  give_group(parameters, *comm_, all_lanes_);
  mean_.emplace(parameters, *comm_, all_lanes_, reducer_options_);
  mean_->begin_step(0);
}

void DistributedOptimizer::broadcast_from(int root) {
  broadcast(*comm_, parameters_, root);
  if (!reducer_options_.scatter) optimizer_.restore(broadcast(*comm_, optimizer_.state(), root));
}

Optimizer::State DistributedOptimizer::gather_state() {
  if (reducer_options_.scatter) return tutti::gather_state(*comm_, parameters_, optimizer_);
  return comm_->rank() == 0 ? optimizer_.state() : Optimizer::State{};
}

void DistributedOptimizer::restore(const Optimizer::State& state) {
  optimizer_.restore(broadcast(*comm_, state, 0));
}

bool DistributedOptimizer::goes_on(bool has_data) {
  const torch::Tensor goes_on = torch::full({1}, has_data, torch::kBool);
  comm_->all_reduce(goes_on, drop_remainder_ ? comm::ReduceOp::Min : comm::ReduceOp::Max,
                    {.what = "whether there is data", .step = steps()});
  return goes_on.item<bool>();
}

void DistributedOptimizer::zero_grad() { mean_->begin_lane(); }

void DistributedOptimizer::count_lane() {
  if (lanes_added_ == lanes().size()) {
    fail(ErrorKind::InvalidArgument,
         "this worker has {} of the lanes ({} to {}), and all of them were added: step()", lanes().size(),
         lanes().begin, lanes().end);
  }
  ++lanes_added_;
}

void DistributedOptimizer::backward(const torch::Tensor& loss, int64_t examples) {
  count_lane();
  mean_->begin_backward(loss, examples);
  loss.backward(torch::full_like(loss, mean_->weight(examples)));
  mean_->add();
}

void DistributedOptimizer::add_lane(int64_t examples) {
  count_lane();
  if (examples < 1) {
    mean_->skip();
    return;
  }
  parameters_.collect_grads();
  const double weight = mean_->weight(examples);
  if (weight != 1) {
    const torch::NoGradGuard no_grad;
    for (const auto& block : parameters_.blocks()) block.grads.mul_(weight);
  }
  mean_->begin_backward(torch::zeros({}), examples);
  mean_->add();
}

int64_t DistributedOptimizer::step(int64_t examples) {
  if (lanes_added_ == 0 && lanes().size() == 1) add_lane(examples);
  if (lanes_added_ != lanes().size()) {
    fail(ErrorKind::InvalidArgument,
         "step() after {} of the {} lanes of this worker: call add_lane() for each", lanes_added_,
         lanes().size());
  }
  lanes_added_ = 0;
  const GradientMean::Result result = [&] {
    const SpanScope span(comm_->timeline(), Activity::Reduce, "gradients", steps());
    return mean_->finish();
  }();
  if (result.examples > 0) {
    const SpanScope span(comm_->timeline(), Activity::Compute, "update", steps());
    if (options_.clip_norm > 0) mean_->clip_norm(options_.clip_norm);
    optimizer_.step();
    mean_->share_update();
  }
  mean_->begin_step(steps());
  return result.examples;
}

}  // namespace tutti
