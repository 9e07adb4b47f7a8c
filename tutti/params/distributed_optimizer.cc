#include "tutti/params/distributed_optimizer.h"

#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/SequenceNumber.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/cluster/roles.h"
#include "tutti/params/agreement.h"
#include "tutti/params/device_scope.h"
#include "tutti/params/optimizer_state.h"

namespace tutti {
namespace {

// Returns the stretches of the parameters that this worker updates.
std::vector<Stretch> updated(const Parameters& parameters, const OptimizerOptions& optimizer,
                             const comm::Communicator& comm, const ReducerOptions& options) {
  if (options.scatter) require_elementwise(optimizer, "--optimizer-state sharded");
  return options.scatter ? parts_of(parameters, comm.rank(), comm.world()) : parameters.blocks();
}

std::vector<std::string> plan_for(const Context& context, const Parameters& parameters,
                                  const OptimizerOptions& optimizer,
                                  const DistributedOptimizerOptions& options, const ReducerOptions& reducer,
                                  int64_t lanes) {
  require_clip_norm(options.clip_norm);
  std::vector<std::string> plan = plan_of(context, parameters, optimizer);
  plan.push_back(fmt::format("lanes {}", lanes));
  plan.push_back(fmt::format("clip_norm {}", options.clip_norm));
  plan.push_back(fmt::format("seed {}", options.seed.value_or(context.config().training.seed)));
  plan.push_back(fmt::format("drop-remainder {}", context.config().training.drop_remainder));
  plan.push_back(to_string(reducer));
  plan.push_back(context.config().checkpoints.logdir.empty() ? "no logdir" : "a logdir");
  return plan;
}

Group group_for(const Context& context, const DistributedOptimizerOptions& options) {
  if (context.identity().is_evaluator) return options.group ? *options.group : connect(context);
  std::string strategy = context.config().training.strategy;
  if (strategy.empty() && has_servers(context.cluster()))
    strategy = "ps-async (the default, as there are servers)";
  if (!strategy.empty() && strategy != "single" && strategy != "allreduce") {
    fail(
        ErrorKind::InvalidArgument,
        "--strategy {}: a training loop of your own works with all-reduce only. Use a Trainer, or --strategy "
        "allreduce",
        strategy);
  }
  return options.group ? *options.group : connect(context);
}

// With --device auto, the parameters are where the program has put them.
void require_device(const Context& context, const Parameters& parameters) {
  const std::string& asked = context.config().compute.device;
  if (asked == "auto" || context.device() == parameters.device()) return;
  fail(ErrorKind::InvalidArgument,
       "--device {}: the parameters are on {}. Move the module before its Parameters are made: "
       "net->to(context.device())",
       asked, parameters.device().str());
}

Parameters& alike(const Context& context, Parameters& parameters, comm::Communicator& comm,
                  const std::vector<std::string>& plan) {
  require_alone_if_single(context, comm);
  require_no_sharded_tables(parameters, "in a training loop of your own");
  require_device(context, parameters);
  require_layout(context, parameters);
  require_unpinned(parameters, context.cluster());
  require_created_on(parameters, parameters.device());
  require_same_plan(context, comm, plan);
  require_same_kernels(context, comm);
  return parameters;
}

// The optimisers of this thread whose lane was begun and is not added yet, in the order of zero_grad(). Each
// gives back the generators as it found them, so the last one has to be added first.
std::vector<const DistributedOptimizer*>& open_lanes() {
  thread_local std::vector<const DistributedOptimizer*> open;
  return open;
}

}  // namespace

DistributedOptimizer::DistributedOptimizer(const Context& context, Parameters& parameters,
                                           const OptimizerOptions& optimizer,
                                           const DistributedOptimizerOptions& options)
    : context_(context),
      parameters_(freeze(parameters, optimizer.groups)),
      options_(options),
      reducer_options_(options.reducer ? *options.reducer : tutti::reducer_options(context.config())),
      precision_(parse_precision(context.config().compute.precision)),
      group_(group_for(context, options)),
      comm_(group_.connected()),
      all_lanes_(options.lanes > 0 ? options.lanes : lanes_for(context.config(), group_.world)),
      optimizer_(
          parameters,
          updated(alike(context, parameters, *comm_,
                        plan_for(context, parameters, optimizer, options, reducer_options_, all_lanes_)),
                  optimizer, *comm_, reducer_options_),
          optimizer),
      timeline_file_(context, *comm_),
      module_group_(give_group(parameters, *comm_, all_lanes_)),
      mean_(parameters, *comm_, all_lanes_, reducer_options_) {
  warn_of_idle_workers(context, *comm_, all_lanes_);
  say_placement(context, parameters, lanes());
  if (group_.is_chief()) warn_of_sparse_tables(context, parameters);
}

comm::Communicator& DistributedOptimizer::communicator() {
  require_between_steps("the communicator is requested");
  return *comm_;
}

void DistributedOptimizer::broadcast_from(int root) {
  broadcast(communicator(), parameters_, root);
  if (!reducer_options_.scatter) optimizer_.restore(broadcast(*comm_, optimizer_.state(), root));
}

Optimizer::State DistributedOptimizer::gather_state() {
  Optimizer::State state;
  if (reducer_options_.scatter)
    state = tutti::gather_state(communicator(), parameters_, optimizer_);
  else if (communicator().rank() == 0)
    state = optimizer_.state();
  gather_residuals(communicator(), parameters_, mean_, state);
  return state;
}

void DistributedOptimizer::restore(const Optimizer::State& state) {
  Optimizer::State own = state;
  restore_residuals(context_, communicator(), parameters_, mean_, own);
  optimizer_.restore(broadcast(*comm_, own, 0));
}

bool DistributedOptimizer::goes_on(bool has_data) {
  const torch::Tensor goes_on = torch::full({1}, has_data, torch::kBool);
  communicator().all_reduce(
      goes_on, context_.config().training.drop_remainder ? comm::ReduceOp::Min : comm::ReduceOp::Max,
      {.what = "whether there is data", .step = steps()});
  return goes_on.item<bool>();
}

void DistributedOptimizer::require_between_steps(const char* what) const {
  if (lanes_added_ == 0 || lanes_added_ != lanes().size()) return;
  fail(ErrorKind::InvalidArgument,
       "{} was called after the last lane of this worker (lanes {} to {}), while its gradients are being "
       "sent: call step() first",
       what, lanes().begin, lanes().end);
}

// The first call of a step begins it, because only then it is known which call that is. A step whose last
// lane failed while it was being sent cannot continue: begin_step() throws the reason.
void DistributedOptimizer::enter_step(const char* what) {
  require_between_steps(what);
  if (in_step_ && !mean_.is_sending()) return;
  in_step_ = true;
  begin_step();
}

void DistributedOptimizer::begin_step() {
  if (context_.identity().is_evaluator) context_.require_worker();  // fails
  lanes_added_ = 0;
  mean_.begin_step(steps(), wishes_, optimizer_.learning_rate());
}

// A lane counts only when it is complete. If it fails before it is sent, other workers are not affected.
template <class Body>
void DistributedOptimizer::add(const char* what, Body body) {
  if (random_ && open_lanes().back() != this)
    fail(ErrorKind::InvalidArgument,
         "{} was called for a lane while that of another optimiser, whose zero_grad() was called later, is "
         "open: add "
         "that one first",
         what);
  enter_step(what);
  try {
    body();
  } catch (const std::exception& error) {
    if (mean_.is_sending()) give_up(error);
    throw;
  }
  close_lane();
  ++lanes_added_;
}

DistributedOptimizer::~DistributedOptimizer() { std::erase(open_lanes(), this); }

void DistributedOptimizer::close_lane() {
  forward_.reset();
  random_.reset();
  std::erase(open_lanes(), this);
}

void DistributedOptimizer::zero_grad() {
  enter_step("zero_grad()");
  mean_.begin_lane();
  if (!random_) {
    random_.emplace(parameters_.device());
    open_lanes().push_back(this);
  }
  random_->seed(lane_seed(options_.seed.value_or(context_.config().training.seed), steps(),
                          lanes().begin + lanes_added_));
  forward_.reset();
  forward_.emplace(parameters_.device(), precision_);
  first_node_ = at::sequence_number::peek();
}

// Autograd numbers the nodes of its graph, in each thread, in the order in which they are made; those of
// parameters have the largest number.
void DistributedOptimizer::require_forward_in_lane(const torch::Tensor& loss) const {
  if (precision_ == Precision::Float32) return;
  std::vector<torch::autograd::Node*> open;
  if (loss.defined() && loss.grad_fn()) open.push_back(loss.grad_fn().get());
  std::unordered_set<torch::autograd::Node*> seen(open.begin(), open.end());
  bool is_of_lane = forward_.has_value();
  while (is_of_lane && !open.empty()) {
    const torch::autograd::Node& node = *open.back();
    open.pop_back();
    is_of_lane = node.sequence_nr() >= first_node_;
    for (const torch::autograd::Edge& edge : node.next_edges()) {
      if (edge.is_valid() && seen.insert(edge.function.get()).second) open.push_back(edge.function.get());
    }
  }
  if (is_of_lane) return;
  fail(ErrorKind::InvalidArgument,
       "--precision bf16: call zero_grad() before the forward pass of the lane, which is computed in this "
       "precision from there on");
}

void DistributedOptimizer::backward(const torch::Tensor& loss, int64_t examples) {
  require_mean(loss);
  if (open_lanes().size() > (random_ ? 1U : 0U))
    fail(ErrorKind::InvalidArgument,
         "backward() was called while a lane of another optimiser is open, whose gradients it would "
         "multiply: with one "
         "loss for several optimisers call loss.backward(), and then add_lane() of each");
  require_forward_in_lane(loss);
  add("backward()", [&] {
    forward_.reset();
    mean_.begin_backward(loss, examples);
    loss.backward(torch::full_like(loss, mean_.weight(examples)));
    mean_.add();
  });
}

void DistributedOptimizer::add_lane(int64_t examples, const torch::Tensor& loss) {
  if (loss.defined()) require_number(loss);
  if (examples > 0) require_forward_in_lane(loss);
  add("add_lane()", [&] {
    if (examples < 1) {
      mean_.skip();
      return;
    }
    parameters_.collect_grads();
    const double weight = mean_.weight(examples);
    if (weight != 1) {
      const torch::NoGradGuard no_grad;
      for (const auto& block : parameters_.blocks()) block.grads.mul_(weight);
    }
    mean_.begin_backward(loss, examples);
    mean_.add();
  });
}

int64_t DistributedOptimizer::step(int64_t examples) {
  if (lanes_added_ == 0 && lanes().size() == 1) add_lane(examples);
  if (lanes_added_ != lanes().size()) {
    fail(ErrorKind::InvalidArgument,
         "step() was called after {} of the {} lanes of this worker: call add_lane() for each lane",
         lanes_added_, lanes().size());
  }
  close_lane();
  if (!in_step_) begin_step();  // this worker has no lanes
  in_step_ = false;
  lanes_added_ = 0;
  wishes_ = {};
  try {
    update();
    ++steps_here_;
    return last_step_.examples;
  } catch (const std::exception& error) {
    give_up(error);
    throw;
  }
}

void DistributedOptimizer::update() {
  {
    const SpanScope span(comm_->timeline(), Activity::Reduce, "gradients", steps());
    last_step_ = mean_.finish();
  }
  if (last_step_.examples == 0) return;
  const SpanScope span(comm_->timeline(), Activity::Compute, "update", steps());
  if (options_.clip_norm > 0) mean_.clip_norm(options_.clip_norm);
  optimizer_.step();
  mean_.share_update();
}

void DistributedOptimizer::wish(const Wishes& wishes) {
  if (in_step_)
    fail(ErrorKind::InvalidArgument,
         "wish() was called after the step had begun: call zero_grad() after wish(), which "
         "Loop::goes_on() calls");
  wishes_ = wishes;
}

void DistributedOptimizer::give_up(const std::exception& error) {
  abandon(fmt::format("{} gave up at step {}: {}", context_.task().short_name(), steps(), error.what()));
}

void DistributedOptimizer::abandon(const std::string& why) noexcept {
  comm_->abandon(why);
  if (module_group_) module_group_->abandon(why);
}

}  // namespace tutti
