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

}  // namespace

DistributedOptimizer::DistributedOptimizer(const Context& context, Parameters& parameters,
                                           const OptimizerOptions& optimizer,
                                           const DistributedOptimizerOptions& options)
    : parameters_(parameters),
      options_(options),
      comm_(options.communicator ? options.communicator : comm::connect(context)),
      all_lanes_(lanes_for(context, options, comm_->world())),
      optimizer_(in_shared_memory(parameters, *comm_).blocks(), optimizer) {
  std::vector<std::string> plan = plan_of(parameters, optimizer);
  plan.push_back(fmt::format("lanes {}", all_lanes_));
  plan.push_back(fmt::format("clip_norm {}", options.clip_norm));
  require_same_plan(*comm_, plan);
  give_group(parameters, *comm_, all_lanes_);
  mean_.emplace(parameters, *comm_, all_lanes_);
}

void DistributedOptimizer::broadcast_from(int root) { broadcast(*comm_, parameters_, optimizer_, root); }

void DistributedOptimizer::zero_grad() { mean_->begin_lane(); }

void DistributedOptimizer::add_lane(int64_t examples) {
  if (lanes_added_ == lanes().size()) {
    fail(ErrorKind::InvalidArgument,
         "this worker has {} of the lanes ({} to {}), and all of them were added: step()", lanes().size(),
         lanes().begin, lanes().end);
  }
  ++lanes_added_;
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
  mean_->add(torch::zeros({}), examples);
}

int64_t DistributedOptimizer::step(int64_t examples) {
  if (lanes_added_ == 0 && lanes().size() == 1) add_lane(examples);
  if (lanes_added_ != lanes().size()) {
    fail(ErrorKind::InvalidArgument,
         "step() after {} of the {} lanes of this worker: call add_lane() for each", lanes_added_,
         lanes().size());
  }
  lanes_added_ = 0;
  const GradientMean::Result result = mean_->finish(steps());
  if (result.examples == 0) return 0;
  if (options_.clip_norm > 0) clip_norm(parameters_, options_.clip_norm);
  optimizer_.step();
  return result.examples;
}

}  // namespace tutti
