#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/cluster/context.h"
#include "tutti/comm/group.h"
#include "tutti/data/feed.h"
#include "tutti/metrics/metric.h"
#include "tutti/store/report.h"
#include "tutti/train/export.h"
#include "tutti/train/fit_state.h"
#include "tutti/train/hook.h"
#include "tutti/train/schedule.h"
#include "tutti/train/strategy.h"
#include "tutti/train/trainable.h"
#include "tutti/train/training_run.h"

namespace tutti {

struct TrainedModel;

// Options of a Trainer.
struct TrainerOptions {
  // Empty: the optimiser's own rate, constant. A schedule that takes its length from the run ends with the
  // present fit().
  Schedule learning_rate = {};
  double clip_norm = 0;  // the maximum norm of the mean gradient; 0: no limit
  // The decay of a moving average of the weights, such as 0.999; 0: none. The average is used for evaluation,
  // predictions and exports, and saved in checkpoints, as the part "average". With parameter servers and
  // in-graph only the chief has it. The rows of sharded embeddings are averaged by their owners.
  double average = 0;
  // The workers that train together; empty: all of the job, connected as the flags and the launcher say.
  std::optional<Group> group = {};
  // The folder in --logdir for checkpoints and event files; "": the log directory itself. If a program has
  // several trainers, each needs a name of its own.
  std::string name = {};
  // How export_model() and the flag --export export the model.
  ExportOptions exports = {};
};

// The length of a fit, and its validation.
struct FitOptions {
  int64_t steps = 0;   // the length of this fit; 0: as --steps and --epochs say
  int64_t epochs = 0;  // the length of this fit in epochs of this feed; 0: as above
  // If true, begins with the first step of the feed's first epoch instead of where the last fit on this feed
  // ended.
  bool from_start = false;
  Evaluation validate = {};  // without a feed or a function the model is not validated
};

// Trains one model as the context's configuration says: strategy, lanes, precision, number of steps,
// checkpoints, report. fit() may be called several times, also with different feeds. A program may have
// several trainers, also with different configurations (Context::with()) and groups of workers. Not
// thread-safe.
class Trainer {
 public:
  // `loss(net, batch)` returns the mean loss over the batch, or {loss, predictions}. The type of the options
  // selects the optimiser:
  //   Trainer trainer(ctx, net, torch::optim::AdamOptions(1e-4), [](Net& net, const Batch& b) { return ...;
  //   });
  template <class Net, class Loss>
  Trainer(const Context& context, const Net& net, const OptimizerOptions& optimizer, Loss loss,
          const TrainerOptions& options = {})
      : Trainer(context, make_trainable(net, std::move(loss)), optimizer, options) {}
  Trainer(const Context& context, Trainable model, const OptimizerOptions& optimizer,
          const TrainerOptions& options = {});
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Adds a hook. It is called after the hooks of the flags, but before a checkpoint is saved, so that the
  // checkpoint includes its changes.
  void add_hook(std::unique_ptr<Hook> hook) { run_.add_hook(std::move(hook)); }

  // Adds a part to the state that checkpoints contain, under a name of its own: a moving average, say, or the
  // program's own counters. Objects that it refers to must outlive this.
  void state(const std::string& name, StatePart part) { run_.add_state(name, std::move(part)); }

  // Trains for the number of steps given by the options or flags. Feed and options have to be the same on all
  // workers. Another fit() on the same feed continues where the previous one on it ended, so several short
  // fits see the same data as a long one. Two feeds are the same if they have the same sources, combined in
  // the same way, and the same size, order and partition; a source that replaces one that has been
  // destroyed counts as the same source.
  //
  // A resumed run continues with the first example that its weights have not seen. A fit() that was completed
  // before, by its last step or by a hook's stop_reason, returns at once. After SIGTERM, SIGINT or SIGHUP it
  // completes the step, saves a checkpoint and throws Interrupted; a signal that arrives during the last step
  // ends the next fit(). If --stop-after ends the fit before its last step, it saves a checkpoint and
  // returns, so that the program may evaluate the model (report().complete is false then); the next fit(), of
  // this trainer or another one, throws Interrupted. With --export, exports a checkpoint instead, and throws
  // ExportDone.
  //
  // Returns the history of the fit, with a row for each epoch and validation. A validation does not affect
  // the training: a run with validations has the same bits as one without.
  //
  // In an evaluator, a task beside the training, it does not train: it evaluates each checkpoint of this call
  // of fit() that the training saves in --logdir, until the call is complete there.
  History fit(const data::Feed& feed, const FitOptions& options = {});

  // Computes the metrics over the whole feed, in evaluation mode, and returns their values by name, and with
  // them "loss", the mean of the loss function over the examples, if the model has one and no metric has that
  // name. Also writes them to the report and the event file. Every worker has to call it and gets the same
  // values, unless EvaluateOptions::here is set.
  std::map<std::string, double> evaluate(const data::Feed& feed, const metrics::List& list,
                                         const EvaluateOptions& options = {});
  // Like evaluate(), but writes nothing to the report or the event file. A hook may call it between two
  // steps: on every worker after the same step or, with `here`, on a single worker. With parameter servers
  // each worker that calls it during a fit evaluates the whole feed, with the weights that it has.
  std::map<std::string, double> measure(const data::Feed& feed, const metrics::List& list,
                                        const EvaluateOptions& options = {});
  // Returns the moving average of the weights by name (TrainerOptions::average), without the rows of sharded
  // embeddings; empty if there is none.
  std::vector<store::NamedTensor> average();
  // Returns the predictions for all examples of the feed, one row each, in its order. Can be called by a
  // single worker, unless rows of sharded embeddings are on other hosts, or other workers have their average.
  //
  // If evaluate() or predict() is called before the first fit(), it starts the run, with the weights of
  // the newest checkpoint, as --resume says. In that case every worker has to call it.
  torch::Tensor predict(const data::Feed& feed, const EvaluateOptions& options = {});

  // Exports the model with its present weights, or their moving average, as tutti::export_model() does, with
  // the rows of sharded embeddings, and returns the path of the new version. Every worker has to call it, at
  // the same place in the program: the chief writes, and all get the path, or the same error. In an
  // evaluator, and after --stop-after has stopped the training, it does nothing and returns "".
  std::string export_model(const std::string& dir, const data::Feed& examples) {
    return export_model(dir, examples, options_.exports);
  }
  std::string export_model(const std::string& dir, const data::Feed& examples, const ExportOptions& options);

  Parameters& parameters() { return replica().parameters(); }
  Optimizer& optimizer() { return replica().optimizer(); }
  // The workers that train together. The chief among them writes checkpoints, events and the report.
  const Group& group() const { return strategy_->group(); }
  // Writes further values of the program into this training's event file.
  store::Events events() const { return run_.events(); }
  // The number of steps done.
  int64_t step() const { return run_.progress().step; }
  const store::Report& report() const { return run_.report(); }
  // For weights that were trained by other means than fit(): the report says that the training is complete.
  void set_trained() { run_.report().complete = true; }
  // Writes the report again, for example after another trainer has written its own.
  void write_report() const { run_.session().write(run_.report()); }

 private:
  Replica& replica() { return strategy_->replica(); }
  // trainer.cc: fits.
  History fit_once(const data::Feed& feed, const FitOptions& options);
  void make_steps(const data::Feed& feed, const data::Sampler& sampler);
  void start_once();
  std::vector<std::string> plan();
  RunFacts facts();
  std::vector<std::string> plan_of_fit(const data::Feed& feed, const FitOptions& options);
  void describe_data(const data::Feed& feed);
  void require_data_in_every_lane(const data::Sampler& sampler) const;
  void begin_fit(int64_t fit, size_t feed, const FitOptions& options);
  void follow_feed(size_t feed);
  int64_t feed_begin() const;
  // evaluation.cc: evaluates and predicts.
  EvaluateOptions ready_to_evaluate(const EvaluateOptions& options);
  std::map<std::string, double> evaluate_now(const data::Feed& feed, const metrics::List& list,
                                             const EvaluateOptions& options);
  // export.cc: exports.
  [[noreturn]] void export_instead_of(const data::Feed& feed, const FitOptions& options);

  const Context context_;
  const TrainerOptions options_;
  const std::unique_ptr<Strategy> strategy_;
  TrainingRun run_;
  bool started_ = false;
  bool fitting_ = false;  // fit() is running
  int64_t next_fit_ = 0;
  FeedsSeen feeds_;
  size_t feed_ = 0;  // of the current fit
};

}  // namespace tutti
