#include "tutti/train/loop_checkpoints.h"

#include <utility>

#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/train/snapshot.h"

namespace tutti {

LoopCheckpoints::LoopCheckpoints(const Context& context, Parameters& parameters, DistributedOptimizer& optimizer)
    : context_(context),
      parameters_(parameters),
      optimizer_(optimizer),
      due_(parse_every(context.flags().checkpoint_every)) {
  if (context.is_chief()) folder_.emplace(context);
}

int64_t LoopCheckpoints::resume() {
  const torch::Tensor steps = torch::full({1}, load(), torch::kInt64);
  optimizer_.communicator().broadcast(steps, 0, {.what = "the progress"}).wait();
  optimizer_.broadcast_from(0);
  return steps.item<int64_t>();
}

int64_t LoopCheckpoints::load() {
  const auto found = folder_ ? folder_->newest() : std::nullopt;
  if (!found) return 0;
  folder_->require_same_run(*found, optimizer_.all_lanes());
  restore(parameters_, optimizer_.optimizer(), found->checkpoint, found->where);
  context_.log().info("going on from {}", found->where);
  return found->checkpoint.step;
}

void LoopCheckpoints::after_step(int64_t steps) {
  if (due_.at(steps)) save(steps);
}

void LoopCheckpoints::save(int64_t steps) {
  if (!folder_ || !folder_->exists()) return;
  store::Checkpoint checkpoint = snapshot(parameters_, optimizer_.optimizer());
  checkpoint.step = steps;
  folder_->save(std::move(checkpoint), optimizer_.all_lanes());
  due_.restart();
}

}  // namespace tutti
