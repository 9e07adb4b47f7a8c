#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tutti/cluster/context.h"
#include "tutti/data/batch.h"
#include "tutti/params/distributed_optimizer.h"
#include "tutti/params/parameters.h"
#include "tutti/train/hook.h"
#include "tutti/train/session.h"
#include "tutti/train/stop_signals.h"
#include "tutti/train/trainable.h"

namespace tutti {

struct LoopOptions {
  // What --epochs counts in. Where neither that nor --steps says how far, one epoch; and where this is 0, to
  // stop() or the end of the data.
  int64_t steps_per_epoch = 0;
};

// What a Trainer has around its steps, for a training loop of one's own: checkpoints in --logdir, and going
// on from them as --resume says; event files, progress, profile, report and hooks; and a good end after
// SIGTERM or SIGINT.
//   tutti::Loop loop(ctx, params, opt);
//   while (loop.goes_on()) {
//     opt.zero_grad(); opt.backward(loss_of(loop.step())); opt.step();
//   }
// Every worker makes one and asks it equally often. All references outlive it. Not thread-safe.
class Loop {
 public:
  Loop(const Context& context, Parameters& parameters, DistributedOptimizer& optimizer,
       const LoopOptions& options = {});
  // Left before its end: nothing is saved, and hooks hear on_error(). Where it is by an exception the other
  // workers hear of it, too; a break is for all of them together.
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Called after those that the flags ask for. Kept as long as the loop: what it refers to outlives that.
  void add_hook(std::unique_ptr<Hook> hook);

  // Whether a step is to be made, after all that is due between two. First, every worker gets the newest
  // whole checkpoint, or what rank 0 has (in place of broadcast_from(0)). Where it ends, the last checkpoint
  // and the report are written; after a signal, which all workers heed after the same step, it throws
  // Interrupted then.
  bool goes_on();
  // The same where data may come to its end: see DistributedOptimizer::goes_on().
  bool goes_on(bool has_data);
  // Steps done: the number of the one to make.
  int64_t step() const { return progress_.step + optimizer_.steps_here() - steps_seen_; }

  // A lane's mean loss, and predictions if there are any, before its backward pass: for --nan-guard and hooks
  // that look at lanes, once for each that counts. Nothing else needs it.
  void observe(int64_t lane, const Batch& batch, const LossOutput& output);

  // Ends after this step; with several workers after the next one, when all have heard of it.
  void stop(std::string why) { training_.stop_reason = std::move(why); }

 private:
  int64_t end_step(const LoopOptions& options) const;
  bool advance(const std::optional<bool>& has_data);
  void begin();
  void prepare_step();
  void note_step();
  void end(int64_t stop);
  void write_report();
  void tell_hooks(const std::exception& error) noexcept;
  void save();
  template <class Body>
  auto or_abandon(Body body);
  template <class Call>
  void for_each_hook(Call call);

  const Context& context_;
  Parameters& parameters_;
  DistributedOptimizer& optimizer_;
  Session session_;
  std::vector<std::unique_ptr<Hook>> hooks_;
  Progress progress_;
  Training training_;
  StepResult last_step_;
  int64_t steps_seen_;                  // of the optimiser
  std::optional<StopSignals> signals_;  // from the first to the last step
  bool prepared_ = false;               // the step to make: hooks have heard of it
  bool ended_ = false;
  bool failed_ = false;  // and hooks have heard why
  const int exceptions_before_;
  std::chrono::steady_clock::time_point begin_;
  int64_t examples_before_ = 0;
};

}  // namespace tutti
