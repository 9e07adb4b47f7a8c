#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/types.h>

#include "tutti/base/log.h"
#include "tutti/data/feed.h"
#include "tutti/metrics/metric.h"
#include "tutti/train/trainable.h"

// How models are evaluated: by a Trainer or a Loop, when the program asks for it and during the training.
namespace tutti {

// How a feed is evaluated: batch by batch, in the order of the feed, by all workers together. Every worker
// has to make the same call, and gets the same values.
struct EvaluateOptions {
  int64_t batch = 500;  // examples
  // Uses only the first so many batches of the feed; 0: all. If each lane of the run has its own examples,
  // the lanes take turns.
  int64_t steps = 0;
  // If true, this worker evaluates the whole feed by itself, and the others do not make the call. With a
  // Trainer of several workers this is possible after the first fit().
  bool here = false;
  // If true, uses the weights of the last step even if the training has their moving average.
  bool last_weights = false;
  // If true, the values include "loss", the mean of the loss function. If that returns its predictions, the
  // metrics use them, and else it takes a forward pass of its own. Set it to false to do without, or if the
  // feed has no labels.
  bool loss = true;
};

// The values of an evaluation, by name.
struct Evaluated {
  int64_t step = 0;  // steps done
  std::map<std::string, double> values = {};

  bool operator==(const Evaluated&) const = default;
};

// An evaluation during a training: what it measures, when, and where its values go. It always begins with the
// first example of the feed. All workers evaluate after the same step, each its share of the batches; with
// parameter servers and in-graph the chief evaluates alone. The values are logged, written to the event file
// and the report, and passed to all hooks and to the history. Metrics with points of a curve, as auc() with
// thresholds, are also shown on TensorBoard's page of PR curves.
//
// An evaluation does not affect the training: random generators, buffers, modes, the positions in the data
// and the metrics of others are afterwards as before, so a run with evaluations has the bits of one without.
struct Evaluation {
  // Every one of several evaluations needs a name. The values are called "NAME_accuracy" in the log, the
  // report, the event file and the hooks. "": it is a validation, whose values are called "accuracy" for
  // hooks such as early_stopping, and "validation_accuracy" in the report and the event file.
  std::string name = {};

  // Either the examples, over which it computes the metrics and "loss", the mean of the loss function ...
  std::optional<data::Feed> feed = {};
  metrics::List metrics = {};           // computed over `feed`
  int64_t batch = 500;                  // as EvaluateOptions::batch
  int64_t steps = 0;                    // as EvaluateOptions::steps
  std::optional<Trainable> model = {};  // empty: the model of the Trainer; a Loop needs one
  // ... or a function of the program that returns values by name. It is called on the workers that evaluate,
  // and the values of the chief count. Meanwhile the nets of the training have their averaged weights, if
  // there are any, no gradients are recorded, and the model of a Trainer and these modules are in evaluation
  // mode.
  std::function<std::map<std::string, double>()> measure = {};
  std::vector<std::shared_ptr<torch::nn::Module>> nets = {};  // modules that `measure` uses

  // The interval: so many steps of the training or, if that is 0, so many passes over its feed (epochs). If
  // neither is set, fit() and a Loop validate after every epoch or, if its length is unknown, only at the
  // end; hooks::evaluation() evaluates after every 1000 steps or, if `every_steps` is 0, not at intervals.
  std::optional<int64_t> every_steps = {};
  int64_t every_epochs = 0;  // used if `every_steps` is 0
  bool at_start = false;     // also before the first step of the run
  bool at_end = true;        // also at the end of a fit or a Loop, unless a signal has ended it

  // A folder for an event file of this evaluation, in which the tags are the plain names: "accuracy". "": the
  // event file of the training.
  std::string summary_dir = {};
  // Gets a row for each evaluation, with the plain names, on the workers that know the values; must outlive
  // the trainer or the loop. A resumed run gets back the rows that were made before.
  std::vector<Evaluated>* history = nullptr;
};

// The advice of a training about the forward passes of its evaluations. Each text is logged once.
class PassAdvice {
 public:
  // Without a log nothing is said, as on a worker that does not write the values.
  explicit PassAdvice(const Log* log = nullptr) : log_(log) {}

  // Says how to save a forward pass if a batch needs two: because the loss function returns no predictions
  // or, if the program has its own Trainable::predict, because its predictions may be others.
  void two_passes(bool has_own_predict);
  // Warns if the loss function returns other predictions than `predict`, which is called only for
  // the first batch of the training's evaluations. Does nothing if it throws an error.
  void compare(const torch::Tensor& of_loss, const std::function<torch::Tensor()>& predict);

 private:
  const Log* log_;  // null: silent
  bool has_advised_ = false;
  bool has_compared_ = false;
};

// Returns the values of the metrics that have one, by name. Logs why the others have none, unless the log is
// null.
std::map<std::string, double> values_of(const metrics::List& list, const Log* log);

}  // namespace tutti
