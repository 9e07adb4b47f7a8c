#include "tutti/train/loop_checkpoints.h"

#include <utility>

#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/train/snapshot.h"

namespace tutti {

LoopCheckpoints::LoopCheckpoints(const Context& context, Parameters& parameters,
                                 DistributedOptimizer& optimizer)
    : context_(context),
      parameters_(parameters),
      optimizer_(optimizer),
      every_(parse_every(context.flags().checkpoint_every)),
      due_(every_) {
  if (context.is_chief()) folder_.emplace(context);
}

int64_t LoopCheckpoints::resume() {
  const auto found = folder_ ? folder_->newest() : std::nullopt;
  Optimizer::State state;
  if (found) {
    folder_->require_same_run(*found, optimizer_.all_lanes());
    state = restore(parameters_, optimizer_.optimizer(), found->checkpoint, found->where);
    context_.log().info("going on from {}", found->where);
  }
  const torch::Tensor steps = torch::full({1}, found ? found->checkpoint.step : 0, torch::kInt64);
  optimizer_.communicator().broadcast(steps, 0, {.what = "the progress"}).wait();
  optimizer_.broadcast_from(0);
  optimizer_.restore(state);
  return steps.item<int64_t>();
}

// Where all have to take part, clocks do not agree well enough: the chief's counts.
bool LoopCheckpoints::is_due(int64_t steps) const {
  if (!optimizer_.is_sharded() || every_.steps > 0 || every_.seconds == 0) return due_.at(steps);
  const torch::Tensor due = torch::full({1}, due_.at(steps), torch::kBool);
  optimizer_.communicator().broadcast(due, 0, {.what = "whether to save", .step = steps}).wait();
  return due.item<bool>();
}

void LoopCheckpoints::after_step(int64_t steps) {
  if (is_due(steps)) save(steps);
}

void LoopCheckpoints::save(int64_t steps) {
  const SpanScope span(context_.timeline(), Activity::Save, "checkpoint", steps);
  due_.restart();
  const Optimizer::State state = optimizer_.gather_state();
  if (!folder_ || !folder_->exists()) return;
  store::Checkpoint checkpoint = snapshot(parameters_, optimizer_.optimizer().options(), state);
  checkpoint.step = steps;
  folder_->save(std::move(checkpoint), optimizer_.all_lanes());
}

}  // namespace tutti
