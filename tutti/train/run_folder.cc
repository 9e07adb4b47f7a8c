#include "tutti/train/run_folder.h"

#include <utility>

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/error.h"

namespace tutti {

RunFolder::RunFolder(const Context& context) : context_(context) {
  const Flags& flags = context.flags();
  if (!flags.logdir.empty())
    checkpoints_.emplace(flags.logdir, store::CheckpointDirOptions{static_cast<int>(flags.keep)});
}

std::optional<RunFolder::Found> RunFolder::newest() {
  const std::string& mode = context_.flags().resume;
  std::optional<Found> found;
  if (checkpoints_ && mode != "never") {
    store::CheckpointDir::Loaded loaded = checkpoints_->load_latest();
    for (const std::string& line : loaded.skipped) context_.log().warning("passed over {}", line);
    if (loaded.checkpoint) {
      const std::string where = fmt::format("{}/ckpt-{}", logdir(), loaded.checkpoint->step);
      found.emplace(Found{*std::move(loaded.checkpoint), where});
    }
  }
  if (!found && mode == "must")
    fail(ErrorKind::InvalidArgument, "--resume must: there is no checkpoint in '{}'", logdir());
  return found;
}

nlohmann::json RunFolder::settings(int64_t lanes) const {
  const Flags& flags = context_.flags();
  return {{"lanes", lanes},
          {"batch", flags.batch},
          {"drop-remainder", flags.drop_remainder},
          {"seed", flags.seed},
          {"precision", flags.precision}};
}

void RunFolder::require_same_run(const Found& found, int64_t lanes) const {
  const nlohmann::json& state = found.checkpoint.state;
  const nlohmann::json settings_now = settings(lanes);
  for (const auto& [name, now] : settings_now.items()) {
    if (!state.contains(name) || state.at(name) == now) continue;
    fail(ErrorKind::InvalidArgument,
         "the run in {} has --{} {}, not {}; give the same to go on with it, or another --logdir or --resume "
         "never "
         "to start anew",
         logdir(), name, state.at(name).dump(), now.dump());
  }
  if (state.value("threads", context_.threads()) == context_.threads()) return;
  context_.log().warning(
      "{} was made with --threads {}, now it is {}: kernels may add in another order, and the bits differ",
      found.where, state.value("threads", 0), context_.threads());
}

void RunFolder::require_finite(const Parameters& parameters, int64_t step) const {
  if (!context_.flags().nan_guard) return;
  const torch::NoGradGuard no_grad;
  for (const Stretch& block : parameters.blocks()) {
    if (torch::isfinite(block.values).all().item<bool>()) continue;
    fail(ErrorKind::InvalidArgument,
         "weights are no longer finite after step {}: not saved. Go on from the checkpoint before, with a "
         "lower "
         "learning rate or other data; --no-nan-guard saves all the same",
         step);
  }
}

void RunFolder::save(store::Checkpoint checkpoint, int64_t lanes) {
  if (!checkpoints_) return;
  checkpoint.state.update(settings(lanes));
  checkpoint.state["threads"] = context_.threads();
  checkpoints_->save(checkpoint);
  context_.log().debug("saved {}/ckpt-{}", logdir(), checkpoint.step);
}

}  // namespace tutti
