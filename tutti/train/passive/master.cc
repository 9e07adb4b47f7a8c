#include "tutti/train/passive/master.h"

#include <exception>
#include <utility>

#include <nlohmann/json.hpp>
#include <torch/utils.h>

#include "tutti/base/check.h"
#include "tutti/base/error.h"
#include "tutti/ps/client.h"

namespace tutti {
namespace {

std::unique_ptr<Replica> own_replica(const Context& context, const Trainable& model,
                                     const OptimizerOptions& optimizer, std::shared_ptr<rpc::Arena> arena) {
  ReplicaOptions options = replica_options(context, *model.module);
  options.device = torch::kCPU;
  options.allocate = ps::arena_allocator(std::move(arena));
  return std::make_unique<Replica>(model, optimizer, options);
}

}  // namespace

Master::Master(const Context& context, const Trainable& model, const OptimizerOptions& optimizer)
    : context_(context), model_(model), arena_(std::make_shared<rpc::Arena>()) {
  own_ = own_replica(context, model, optimizer, arena_);
  replica_ = own_.get();
  const auto workers = static_cast<int64_t>(passive::tasks_of(context.cluster()).size());
  begin({.plan = replica_->parameters().plan(), .lanes = workers, .progress = Json::object()}, 0);
}

Master::Master(const Context& context, const Trainable& model, Replica& replica,
               std::shared_ptr<rpc::Arena> arena)
    : context_(context), model_(model), arena_(std::move(arena)), replica_(&replica) {}

Master::~Master() {
  if (!workers_) return;
  wait_for_all();
  if (std::uncaught_exceptions() > exceptions_) return;
  try {
    workers_->end();
  } catch (const std::exception& error) {
    context_.log().warning("could not tell a passive worker that the job is done: {}", error.what());
  }
}

void Master::begin(const passive::Beginning& beginning, int64_t step) {
  step_ = step;
  Parameters& parameters = replica_->parameters();
  if (!vectors_) {
    vectors_.emplace(parameters, beginning.lanes);
    workers_ = std::make_unique<passive::Workers>(context_, model_, *replica_, *vectors_, arena_);
    const auto workers = static_cast<size_t>(workers_->count());
    if (workers == 0)
      fail(ErrorKind::InvalidArgument,
           "the master has no workers: name more tasks in --cluster_spec, or start it with `tutti run -n 2 "
           "-- PROGRAM --strategy in-graph`");
    sum_.emplace(parameters.blocks(), replica_->optimizer(), vectors_->buffers(), vectors_->counters(),
                 ps::SyncOptions{static_cast<int>(workers), beginning.lanes});
    under_way_.resize(workers);
    asked_.resize(workers);
  }
  workers_->begin(beginning);
}

void Master::gradients(int worker, std::vector<Batch> batches) {
  const auto at = static_cast<size_t>(worker);
  TUTTI_CHECK(at < asked_.size(), "worker {} of {}", worker, asked_.size());
  const LaneRange lanes = workers_->lanes_of(worker);
  if (asked_[at] || static_cast<int64_t>(batches.size()) != lanes.size())
    fail(ErrorKind::InvalidArgument,
         "call gradients() once per worker and step, with one batch for each of its {} lanes", lanes.size());
  asked_[at] = true;
  under_way_[at] = workers_->ask(worker, step_, std::move(batches));
}

// Waits for all requests, since pending requests still read the parameters.
std::exception_ptr Master::wait_for_all() noexcept {
  std::exception_ptr failure;
  for (comm::Work& work : under_way_) {
    try {
      std::exchange(work, {}).wait();
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
  return failure;
}

Master::Mean Master::average() {
  const torch::NoGradGuard no_grad;
  const std::exception_ptr failure = wait_for_all();
  const std::vector<bool> asked = std::exchange(asked_, std::vector<bool>(asked_.size()));
  if (failure) std::rethrow_exception(failure);
  Mean mean;
  for (int worker = 0; worker < workers(); ++worker) {
    if (!asked[static_cast<size_t>(worker)]) continue;
    const passive::Workers::Answer& answer = workers_->answer(worker);
    sum_->offer(worker, step_, answer.sums);
    mean.outputs.resize(static_cast<size_t>(workers_->lanes_of(worker).begin));
    mean.outputs.insert(mean.outputs.end(), answer.outputs.begin(), answer.outputs.end());
  }
  const ps::SyncStep::Result result = sum_->add_up(step_);
  if (result.outcome.any_data) vectors_->take_over_buffers();
  mean.examples = result.examples;
  mean.loss_sum = result.loss_sum;
  mean.wishes = result.outcome.wishes;
  return mean;
}

void Master::apply() {
  sum_->apply(1);
  ++step_;
}

}  // namespace tutti
