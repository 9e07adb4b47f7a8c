#include "tutti/train/loop_checkpoints.h"

#include <utility>

#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/params/agreement.h"
#include "tutti/train/snapshot.h"

namespace tutti {

LoopCheckpoints::LoopCheckpoints(const Context& context, Parameters& parameters,
                                 DistributedOptimizer& optimizer)
    : context_(context),
      parameters_(parameters),
      optimizer_(optimizer),
      every_(parse_every(context.flags().checkpoint_every)),
      due_(every_) {
  if (optimizer.communicator().rank() == 0) folder_.emplace(context);
}

int64_t LoopCheckpoints::resume() {
  Optimizer::State state;
  const torch::Tensor steps = torch::zeros({1}, torch::kInt64);
  on_chief(context_, optimizer_.communicator(), {.what = "the checkpoint"}, [&] {
    const auto found = folder_->newest();
    if (!found) return;
    folder_->require_same_run(*found, optimizer_.all_lanes());
    state = restore(parameters_, optimizer_.optimizer(), found->checkpoint, found->where);
    context_.log().info("going on from {}", found->where);
    steps.fill_(found->checkpoint.step);
  });
  optimizer_.communicator().broadcast(steps, 0, {.what = "the progress"}).wait();
  optimizer_.broadcast_from(0);
  optimizer_.restore(state);
  due_.restart(steps.item<int64_t>());
  return steps.item<int64_t>();
}

// All take part, and clocks do not agree well enough: the chief's counts.
bool LoopCheckpoints::is_due(int64_t steps) const {
  if (!saves()) return false;
  if (every_.seconds == 0) return due_.at(steps);
  const torch::Tensor due = torch::full({1}, due_.at(steps), torch::kBool);
  optimizer_.communicator().broadcast(due, 0, {.what = "whether to save", .step = steps}).wait();
  return due.item<bool>();
}

void LoopCheckpoints::after_step(int64_t steps) {
  if (is_due(steps)) save(steps);
}

void LoopCheckpoints::save(int64_t steps) {
  const SpanScope span(context_.timeline(), Activity::Save, "checkpoint", steps);
  due_.restart(steps);
  if (!saves()) return;
  const Optimizer::State state = optimizer_.gather_state();
  on_chief(context_, optimizer_.communicator(), {.what = "the checkpoint", .step = steps}, [&] {
    folder_->require_finite(parameters_, steps);
    store::Checkpoint checkpoint = snapshot(parameters_, optimizer_.optimizer().options(), state);
    checkpoint.step = steps;
    folder_->save(std::move(checkpoint), optimizer_.all_lanes());
  });
}

}  // namespace tutti
