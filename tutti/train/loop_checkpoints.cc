#include "tutti/train/loop_checkpoints.h"

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/train/snapshot.h"

namespace tutti {

LoopCheckpoints::LoopCheckpoints(const Context& context, Parameters& parameters,
                                 DistributedOptimizer& optimizer)
    : context_(context),
      parameters_(parameters),
      optimizer_(optimizer),
      every_(parse_every(context.flags().checkpoint_every)) {
  const Flags& flags = context.flags();
  if (!flags.logdir.empty() && context.is_chief())
    folder_.emplace(flags.logdir, store::CheckpointDirOptions{static_cast<int>(flags.keep)});
}

int64_t LoopCheckpoints::resume() {
  const torch::Tensor steps = torch::full({1}, load(), torch::kInt64);
  optimizer_.communicator().broadcast(steps, 0, {.what = "the progress"}).wait();
  optimizer_.broadcast_from(0);
  return steps.item<int64_t>();
}

int64_t LoopCheckpoints::load() {
  if (!folder_) return 0;
  const std::string& mode = context_.flags().resume;
  std::optional<store::Checkpoint> found;
  if (mode != "never") {
    store::CheckpointDir::Loaded loaded = folder_->load_latest();
    for (const std::string& line : loaded.skipped) context_.log().warning("passed over {}", line);
    found = std::move(loaded.checkpoint);
  }
  if (!found && mode == "must")
    fail(ErrorKind::InvalidArgument, "--resume must: there is no checkpoint in '{}'", folder_->logdir());
  if (!found) return 0;
  const std::string where = fmt::format("{}/ckpt-{}", folder_->logdir(), found->step);
  restore(parameters_, optimizer_.optimizer(), *found, where);
  context_.log().info("going on from {}", where);
  return found->step;
}

void LoopCheckpoints::after_step(int64_t steps) {
  const bool by_steps = every_.steps > 0 && steps % every_.steps == 0;
  const auto since = std::chrono::steady_clock::now() - last_time_;
  if (by_steps || (every_.seconds > 0 && since >= std::chrono::duration<double>(every_.seconds))) save(steps);
}

void LoopCheckpoints::save(int64_t steps) {
  if (!folder_) return;
  store::Checkpoint checkpoint = snapshot(parameters_, optimizer_.optimizer());
  checkpoint.step = steps;
  folder_->save(checkpoint);
  last_time_ = std::chrono::steady_clock::now();
}

}  // namespace tutti
