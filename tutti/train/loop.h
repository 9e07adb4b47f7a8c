#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include "tutti/cluster/context.h"
#include "tutti/data/batch.h"
#include "tutti/data/feed.h"
#include "tutti/metrics/metric.h"
#include "tutti/params/parameters.h"
#include "tutti/train/distributed_optimizer.h"
#include "tutti/train/export.h"
#include "tutti/train/fit_state.h"
#include "tutti/train/hook.h"
#include "tutti/train/schedule.h"
#include "tutti/train/trainable.h"
#include "tutti/train/training_run.h"

namespace tutti {

// Options of a Loop.
struct LoopOptions {
  // The number of batches of a lane in an epoch, for --epochs. Without --epochs and --steps the loop runs for
  // one epoch; if this is 0, until stop() or the end of the data.
  int64_t steps_per_epoch = 0;
  // The decay of a moving average of the weights of all nets, such as 0.999; 0: none. The average is used for
  // validations, and saved in checkpoints, as the part "average". It follows the steps of the loop.
  double average = 0;
  // The learning rate of all nets, at each step of the loop; empty: the rate of the optimisers, or what the
  // program sets (DistributedOptimizer::set_learning_rate).
  Schedule learning_rate = {};
  // The folder in --logdir for checkpoints and event files; "": the log directory itself. If a program has
  // several loops, each needs a name of its own.
  std::string name = {};
};

// One of several nets that are trained in a Loop. In the checkpoint its tensors have the name as a prefix:
// "g.conv1.weight".
struct LoopPart {
  std::string name;
  Parameters& parameters;
  DistributedOptimizer& optimizer;
  // The decay of a moving average of this net's weights; 0: as LoopOptions::average says.
  double average = 0;
  Schedule learning_rate = {};  // of this net; empty: as LoopOptions::learning_rate says
};

// Everything that a Trainer does besides its steps, for custom training loops: checkpoints in --logdir, and
// resuming from them as --resume says; event files, progress, profile, report and hooks; and an orderly end
// with a checkpoint after SIGTERM, SIGINT or SIGHUP.
//   tutti::Loop loop(ctx, params, opt);
//   while (loop.goes_on()) {
//     opt.zero_grad(); opt.backward(loss_of(loop.step())); opt.step();
//   }
// Every worker has to make one and to call goes_on() equally often. The parts must outlive it. Not
// thread-safe.
//
// With parameter servers the first goes_on() begins the run on them, or takes part in it, and the last one
// gives all workers the same weights. If a server or a worker is lost, goes_on() waits until it is back and
// continues where all tasks are, which may be an earlier step(). With ps-async, step() counts the steps of
// all workers; the index of this worker's next batch is batch().
//
// In an evaluator, a task beside the training, the first goes_on() evaluates the checkpoints that the
// training saves, until it is complete, and returns false.
//
// Several nets that are trained together, as in a GAN, are parts of one loop and share its checkpoints:
//   tutti::Loop loop(ctx, {{"g", params_g, opt_g}, {"d", params_d, opt_d}});
// A step of the loop is a step of the first part's optimiser, whose loss and examples also go to hooks and
// report. The other optimisers may make any number of steps in the meantime. With parameter servers, a loop
// has one net.
class Loop {
 public:
  Loop(const Context& context, Parameters& parameters, DistributedOptimizer& optimizer,
       const LoopOptions& options = {});
  Loop(const Context& context, const std::vector<LoopPart>& parts, const LoopOptions& options = {});
  // If the loop has not ended, saves nothing and calls the hooks' on_error(). If this is due to an exception,
  // the other workers are told as well; a `break` has to be made by all workers after the same step.
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Adds a hook. It is called after the hooks of the flags, but before a checkpoint is saved, so that the
  // checkpoint includes its changes. Objects that it refers to must outlive the loop.
  void add_hook(std::unique_ptr<Hook> hook) { run_.add_hook(std::move(hook)); }

  // Adds a part to the state that checkpoints contain, under a name of its own: a moving average, say, or the
  // program's own counters. Objects that it refers to must outlive this.
  void state(const std::string& name, StatePart part) { run_.add_state(name, std::move(part)); }

  // Validates the nets: a model on a feed, or by a function that returns values such as {{"loss", 0.2},
  // {"accuracy", 0.9}} and may call measure(). As in a Trainer the values are logged, written to the event
  // file and the report, and passed to all hooks, such as early_stopping and keep_best, and to history().
  // Every worker has to call this before the loop begins.
  void validate_with(Evaluation evaluation);
  // Computes metrics over the whole feed, in evaluation mode, and returns their values by name, with the mean
  // of the model's loss function, if it has one, as "loss". Every worker has to call it, unless it measures
  // `here`; all get the same values. With parameter servers, each worker that calls it during the loop
  // measures by itself. The model is measured as it is: with its averaged weights only in a function of an
  // evaluation, or in with_average(). Can be called there, between two steps, or after the last one.
  std::map<std::string, double> measure(const Trainable& model, const data::Feed& feed,
                                        const metrics::List& list, const EvaluateOptions& options = {});
  // Calls `body` while the nets have their averaged weights, if they have any.
  void with_average(const std::function<void()>& body);
  // Exports a net as tutti::export_model() does, with its weights or their moving average, and with the rows
  // of sharded embeddings. Every worker has to call it, between two steps or after the last one: the chief
  // writes, and all get the path, or the same error. In an evaluator, and after --stop-after, does nothing
  // and returns
  // "".
  std::string export_model(const std::string& dir, const Trainable& model, const data::Feed& examples,
                           const ExportOptions& options = {});
  // Writes further values of the program into this loop's event file.
  store::Events events() const { return run_.events(); }
  // A row for each epoch and validation. A resumed loop continues the history of the run.
  const History& history() const { return run_.history(); }

  // Does the work between two steps, and returns true if another step is to be made. The first call gives
  // every worker the newest intact checkpoint, or the state of the chief (so broadcast_from(0) is not
  // needed). The last call writes the last checkpoint and the report; after a signal, which takes effect
  // after the same step on all workers, it then throws Interrupted. If --stop-after ends the loop, it does
  // not throw, but the next Loop or Trainer of the program does.
  bool goes_on() { return advance({}); }
  // Like goes_on(), for data that can run out: see DistributedOptimizer::goes_on().
  bool goes_on(bool has_data) { return advance(has_data); }
  // The number of steps done, which is also the index of the next step.
  int64_t step() const { return run_.progress().step + optimizer_.steps_here() - steps_seen_; }
  // The index of this worker's next batches in the order of the data, for a data::Sampler. It is step() if
  // all workers make every step together. With ps-async, each worker takes its batches one after the other,
  // so that all workers together use each example once in an epoch.
  int64_t batch() const { return run_.batch() + optimizer_.steps_here() - steps_seen_; }

  // Passes a lane's mean loss, and optionally its predictions, to --nan-guard and to hooks that use them.
  // Call it before the backward pass, once per lane. Without it --nan-guard ends the loop after the first
  // step whose loss is not finite, if the optimiser was told the losses, but cannot name the tensor that was
  // bad first.
  void observe(int64_t lane, const Batch& batch, const LossOutput& output);

  // Ends the loop after the next step that begins, by which time all workers have been told; a single worker
  // makes that step as well, so that the weights do not depend on the number of workers. If called between
  // goes_on() and step(), this is the step after the current one. The run is complete then: if the program is
  // started again, the loop ends at once.
  void stop(std::string why) { run_.training().stop_reason = std::move(why); }

 private:
  struct Checked {};  // tag: the names of the parts are checked
  Loop(const Context& context, const std::vector<LoopPart>& parts, const LoopOptions& options, Checked);
  std::vector<std::string> plan();
  int64_t steps_per_epoch() const { return options_.steps_per_epoch * strategy().facts().steps_per_batch; }
  int64_t end_step() const;
  void set_other_nets();
  RunFacts facts() const;
  bool advance(const std::optional<bool>& has_data);
  bool begin();
  DataParallel& strategy() const { return *optimizer_.strategy_; }
  embedding::Tables& tables() const { return strategy().replica().tables(); }
  void note_step();

  const Context context_;
  const std::vector<LoopPart> parts_;
  DistributedOptimizer& optimizer_;  // of the first part
  TrainingRun run_;
  const LoopOptions options_;
  const int64_t end_step_;
  int64_t steps_seen_;  // of the optimiser, when last counted
  bool begun_ = false;
  const int exceptions_before_;
};

}  // namespace tutti
