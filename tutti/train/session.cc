#include "tutti/train/session.h"

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/train/snapshot.h"

namespace tutti {
namespace {

std::string newest(const std::string& logdir, int64_t step) {
  return fmt::format("{}/ckpt-{}", logdir, step);
}

}  // namespace

Session::Session(const Context& context, Replica& replica)
    : context_(context), replica_(replica), lanes_(context.lanes()) {
  if (!context.flags().logdir.empty()) {
    checkpoints_.emplace(context.flags().logdir,
                         store::CheckpointDirOptions{static_cast<int>(context.flags().keep)});
  }
}

Session::~Session() = default;

Progress Session::start() {
  const std::string& mode = context_.flags().resume;
  std::optional<store::Checkpoint> found;
  if (checkpoints_ && mode != "never") {
    store::CheckpointDir::Loaded loaded = checkpoints_->load_latest();
    for (const std::string& line : loaded.skipped) context_.log().warning("passed over {}", line);
    found = std::move(loaded.checkpoint);
  }
  if (!found && mode == "must") {
    fail(ErrorKind::InvalidArgument, "--resume must: there is no checkpoint in '{}'",
         context_.flags().logdir);
  }
  const Progress progress = found ? resume(*found) : Progress{};
  open_events(found ? std::optional(found->step) : std::nullopt);
  return progress;
}

Progress Session::resume(const store::Checkpoint& checkpoint) {
  const std::string where = newest(checkpoints_->logdir(), checkpoint.step);
  const nlohmann::json& state = checkpoint.state;
  if (context_.flags().lanes == 0) lanes_ = state.value("lanes", lanes_);
  const nlohmann::json now_set = settings();
  for (const auto& [name, now] : now_set.items()) require_same(state, name.c_str(), now);
  if (state.value("threads", context_.threads()) != context_.threads()) {
    context_.log().warning(
        "{} was made with --threads {}, now it is {}: kernels may add in another order, and the bits differ",
        where, state.value("threads", 0), context_.threads());
  }
  restore(replica_.parameters(), replica_.optimizer(), checkpoint, where);
  context_.log().info("going on from {}", where);
  return {.step = checkpoint.step,
          .fit = state.value("fit", int64_t{0}),
          .fit_begin = state.value("fit_begin", int64_t{0}),
          .examples = state.value("examples", int64_t{0}),
          .restarts = state.value("restarts", int64_t{0}) + 1};
}

// What decides which examples a step sees and how it adds: a run that goes on with other values is another
// run.
nlohmann::json Session::settings() const {
  return {{"lanes", lanes_},
          {"batch", context_.flags().batch},
          {"seed", context_.flags().seed},
          {"precision", context_.flags().precision}};
}

void Session::require_same(const nlohmann::json& state, const char* name, const nlohmann::json& now) const {
  if (!state.contains(name) || state.at(name) == now) return;
  fail(ErrorKind::InvalidArgument,
       "the run in {} has --{} {}, not {}; give the same to go on with it, or another --logdir or --resume "
       "never to start "
       "anew",
       checkpoints_->logdir(), name, state.at(name).dump(), now.dump());
}

void Session::open_events(const std::optional<int64_t>& resumed_after) {
  if (!checkpoints_ || !context_.is_chief()) return;
  store::EventWriterOptions options;
  options.resumed_after = resumed_after;
  events_ = std::make_unique<store::EventWriter>(checkpoints_->logdir(), options);
}

void Session::save(const Progress& progress) {
  if (!checkpoints_ || !context_.is_chief()) return;
  if (events_) events_->flush();
  store::Checkpoint checkpoint = snapshot(replica_.parameters(), replica_.optimizer());
  checkpoint.step = progress.step;
  checkpoint.state.update(settings());
  checkpoint.state["threads"] = context_.threads();
  checkpoint.state["fit"] = progress.fit;
  checkpoint.state["fit_begin"] = progress.fit_begin;
  checkpoint.state["examples"] = progress.examples;
  checkpoint.state["restarts"] = progress.restarts;
  checkpoints_->save(checkpoint);
  context_.log().debug("saved {}", newest(checkpoints_->logdir(), progress.step));
}

}  // namespace tutti
