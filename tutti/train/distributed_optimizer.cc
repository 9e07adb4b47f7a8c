#include "tutti/train/distributed_optimizer.h"

#include <algorithm>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/SequenceNumber.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/step/gradient_mean.h"
#include "tutti/train/strategies/all_reduce.h"

namespace tutti {
namespace {

// Returns the options of the strategy, with the facts about the steps that all workers must have in common.
StrategyOptions strategy_options(const Context& context, const DistributedOptimizerOptions& options,
                                 const ReducerOptions& reducer) {
  const RunConfig& config = context.config();
  if (config.training.strategy == "in-graph")
    fail(ErrorKind::InvalidArgument,
         "--strategy in-graph: passive workers compute the lanes of a Trainer, and not of a training "
         "loop of your own. Use a Trainer, or another --strategy");
  StrategyOptions all{.group = options.group ? *options.group : all_workers(context),
                      .clip_norm = options.clip_norm,
                      .reducer = options.reducer};
  all.lanes = options.lanes > 0 ? options.lanes : lanes_for(context, *all.group);
  all.plan = {fmt::format("lanes {}", all.lanes),
              fmt::format("clip_norm {}", options.clip_norm),
              fmt::format("seed {}", options.seed.value_or(config.training.seed)),
              fmt::format("drop-remainder {}", config.training.drop_remainder),
              to_string(reducer),
              config.checkpoints.logdir.empty() ? "no logdir" : "a logdir"};
  return all;
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

Parameters& require_usable(const Context& context, Parameters& parameters, bool has_module) {
  if (!has_module) require_no_sharded_tables(parameters, "without its module");
  require_device(context, parameters);
  require_layout(context, parameters);
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
      parameters_(require_usable(context, parameters, options.module != nullptr)),
      options_(options),
      reducer_options_(options.reducer ? *options.reducer : tutti::reducer_options(context.config())),
      precision_(parse_precision(context.config().compute.precision)),
      strategy_options_(strategy_options(context_, options, reducer_options_)),
      all_lanes_(strategy_options_.lanes),
      strategy_(
          make_strategy(context_, options.module, parameters, optimizer, strategy_options_, &all_reduce_)) {}

comm::Communicator& DistributedOptimizer::communicator() {
  require_between_steps("the communicator is requested");
  return *group().connected();
}

AllReduce& DistributedOptimizer::all_reduce() {
  static_cast<void>(communicator());  // throws if there is none
  context_.require_worker();
  if (all_reduce_ == nullptr)
    fail(ErrorKind::InvalidArgument, "with parameter servers, the servers hold what this call would move");
  return *all_reduce_;
}

void DistributedOptimizer::broadcast_from(int root) { all_reduce().broadcast_from(root); }

Optimizer::State DistributedOptimizer::gather_state() { return all_reduce().gather_state(); }

void DistributedOptimizer::restore(const Optimizer::State& state) { all_reduce().restore(state); }

bool DistributedOptimizer::goes_on(bool has_data) {
  if (!group().communicator) {
    if (group().world == 1 || !strategy_->facts().in_step) return has_data;
    fail(ErrorKind::InvalidArgument,
         "--strategy {}: workers that are not connected cannot tell each other whether they have data. Give "
         "the number of steps (--steps, or --epochs with LoopOptions::steps_per_epoch) in place of "
         "goes_on(has_data)",
         strategy_->facts().name);
  }
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
  if (in_step_ && !sum_->is_sending()) return;
  begin_step();
  in_step_ = true;
}

void DistributedOptimizer::begin_step() {
  require_audits();
  lanes_added_ = 0;
  failure_.clear();
  copy_ = strategy_->lane_to_audit(steps());
  sum_ = &strategy_->begin_step(steps(), wishes_);
}

std::vector<int64_t> DistributedOptimizer::lanes_of_step() {
  knows_audits_ = true;
  std::vector<int64_t> all;
  if (const auto copy = strategy_->lane_to_audit(steps())) all.push_back(*copy);
  for (int64_t lane = lanes().begin; lane < lanes().end; ++lane) all.push_back(lane);
  return all;
}

// A loop over lanes() would compute a lane of its own in place of the one that is compared.
void DistributedOptimizer::require_audits() const {
  if (context_.config().training.audit == 0 || knows_audits_ || all_reduce_ == nullptr) return;
  fail(ErrorKind::InvalidArgument,
       "--audit {}: this program computes the lanes of DistributedOptimizer::lanes(). Let its loop use "
       "lanes_of_step(), which has a lane of another worker in some steps",
       context_.config().training.audit);
}

// A lane counts only when it is complete. If it fails before it is sent, other workers are not affected.
template <class Body>
void DistributedOptimizer::add(const char* what, Body body) {
  if (random_ && open_lanes().back() != this)
    fail(ErrorKind::InvalidArgument,
         "{} was called for a lane while a lane of another optimiser, whose zero_grad() was called later, "
         "is open: add that lane first",
         what);
  enter_step(what);
  try {
    body();
  } catch (const std::exception& error) {
    failure_ = error.what();
    if (sum_->is_sending()) give_up(error);
    throw;
  }
  close_lane();
  copy_ ? copy_.reset() : static_cast<void>(++lanes_added_);
}

DistributedOptimizer::~DistributedOptimizer() { std::erase(open_lanes(), this); }

void DistributedOptimizer::close_lane() {
  if (random_ && !tables().empty()) tables().end_lane();
  forward_.reset();
  random_.reset();
  std::erase(open_lanes(), this);
}

bool DistributedOptimizer::fetch(std::span<const Batch> batches) {
  if (!in_loop_ || in_step_)
    fail(ErrorKind::InvalidArgument,
         "fetch() was called {}: call it after Loop::goes_on(), before zero_grad()",
         in_step_ ? "after the step had begun" : "outside of a Loop");
  require_audits();
  const bool copies = strategy_->lane_to_audit(steps()).has_value();
  if (static_cast<int64_t>(batches.size()) != lanes().size() + (copies ? 1 : 0))
    fail(ErrorKind::InvalidArgument, "fetch() was called with {} batches, but this worker has {} lanes",
         batches.size(), lanes().size() + (copies ? 1 : 0));
  std::vector<Batch> own_first(batches.begin(), batches.end());
  if (copies) std::rotate(own_first.begin(), own_first.begin() + 1, own_first.end());
  fetched_ = false;
  try {
    if (!tables().empty()) tables().fetch(own_first);
    fetched_ = true;
  } catch (const Error& error) {
    if (!note_loss_of_task(error)) throw;
  }
  return fetched_;
}

// Returns true if the training goes on after this error.
bool DistributedOptimizer::note_loss_of_task(const Error& error) {
  const StrategyFacts& facts = strategy_->facts();
  const bool is_loss =
      error.kind() == ErrorKind::PeerLost || (facts.survives && error.kind() == ErrorKind::Timeout);
  if (!is_loss || !in_loop_ || !(facts.restarts || facts.survives)) return false;
  lost_ = error;
  return true;
}

void DistributedOptimizer::zero_grad() {
  enter_step("zero_grad()");
  if (!tables().empty()) {
    if (!fetched_)
      fail(ErrorKind::InvalidArgument,
           "the module has sharded embeddings: call fetch() with the batches of all lanes before the first "
           "lane");
    tables().begin_lane(batch_of_lane());
  }
  sum_->begin_lane();
  if (!random_) {
    random_.emplace(parameters_.device());
    open_lanes().push_back(this);
  }
  random_->seed(lane_seed(options_.seed.value_or(context_.config().training.seed), steps(), lane()));
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
  if (examples < 1)
    fail(ErrorKind::InvalidArgument,
         "backward() was called for {} examples. A lane without examples is skipped by add_lane(0); in the "
         "last step of an epoch there is none with SamplerOptions::drop_remainder",
         examples);
  require_mean(loss);
  if (open_lanes().size() > (random_ ? 1U : 0U))
    fail(ErrorKind::InvalidArgument,
         "backward() was called while a lane of another optimiser is open, whose gradients it would "
         "multiply: with one "
         "loss for several optimisers call loss.backward(), and then add_lane() of each");
  require_forward_in_lane(loss);
  add("backward()", [&] {
    forward_.reset();
    sum_->begin_backward(loss, examples);
    loss.backward(torch::full_like(loss, sum_->weight(examples)));
    sum_->add();
  });
}

void DistributedOptimizer::add_lane(int64_t examples, const torch::Tensor& loss) {
  if (loss.defined()) require_number(loss);
  if (examples > 0) require_forward_in_lane(loss);
  if (examples > 0 && !tables().empty())
    fail(ErrorKind::InvalidArgument, "a lane of a module with sharded embeddings is made by backward()");
  add("add_lane()", [&] {
    if (examples < 1) {
      if (random_ && !tables().empty()) tables().begin_lane(batch_of_lane());  // forgets it
      sum_->skip();
      return;
    }
    parameters_.collect_grads();
    const double weight = sum_->weight(examples);
    if (weight != 1) {
      const torch::NoGradGuard no_grad;
      for (const auto& block : parameters_.blocks()) block.grads.mul_(weight);
    }
    sum_->begin_backward(loss, examples);
    sum_->add();
  });
}

int64_t DistributedOptimizer::step(int64_t examples) {
  if (copy_ && random_)
    fail(ErrorKind::InvalidArgument,
         "step() was called before lane {} of lanes_of_step() was added, which is audited (--audit)", *copy_);
  if (lanes_added_ == 0 && lanes().size() > 0 && (lanes().size() == 1 || examples == 0)) {
    enter_step("step()");
    if (copy_) add_lane(0);
    for (int64_t lane = 0; lane < lanes().size(); ++lane) add_lane(examples);
  }
  if (lanes_added_ != lanes().size()) {
    fail(ErrorKind::InvalidArgument,
         "step() was called after {} of the {} lanes of this worker: call add_lane() for each lane{}",
         lanes_added_, lanes().size(),
         group().epoch > 0 ? ". The workers have changed: read lanes() in every step" : "");
  }
  close_lane();
  if (!in_step_) begin_step();  // this worker has no lanes
  in_step_ = fetched_ = false;
  lanes_added_ = 0;
  wishes_ = {};
  try {
    const StepResult result = strategy_->end_step();
    again_ = result.again;
    if (again_) return 0;  // Loop::goes_on() comes next
    last_step_ = result;
    ++steps_here_;
    return last_step_.examples;
  } catch (const Error& error) {
    if (note_loss_of_task(error)) return 0;
    give_up(error);
    throw;
  } catch (const std::exception& error) {
    give_up(error);
    throw;
  }
}

void DistributedOptimizer::wish(const Wishes& wishes) {
  if (in_step_)
    fail(ErrorKind::InvalidArgument,
         "wish() was called after the step had begun: call zero_grad() after wish(), which "
         "Loop::goes_on() calls");
  wishes_ = wishes;
}

void DistributedOptimizer::give_up(const std::exception& error) {
  failure_ = error.what();
  abandon(fmt::format("{} gave up at step {}: {}", context_.task().short_name(), steps(), error.what()));
}

void DistributedOptimizer::abandon(const std::string& why) noexcept { strategy_->abandon(why); }

}  // namespace tutti
