#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "tutti/cluster/context.h"
#include "tutti/data/batch.h"
#include "tutti/metrics/metric.h"
#include "tutti/params/optimizer.h"
#include "tutti/params/parameters.h"
#include "tutti/store/event_file.h"
#include "tutti/train/evaluation.h"
#include "tutti/train/session.h"
#include "tutti/train/snapshot.h"
#include "tutti/train/strategy.h"
#include "tutti/train/trainable.h"

namespace tutti {

class MovingAverage;
class TrainingRun;

// The state of a running training, of a Trainer or a Loop, as its hooks see it.
struct Training {
  static constexpr int64_t kEndless = std::numeric_limits<int64_t>::max();

  const Context& context;
  TrainingRun& run;    // which the methods below call
  const Group& group;  // the workers that train together
  Parameters& parameters;
  Optimizer& optimizer;
  // All nets that are trained together; `parameters` and `optimizer` belong to the first.
  std::vector<SessionPart> parts = {};
  int64_t first_step = 0;  // the step at which this run started or resumed
  int64_t step = 0;        // steps done
  int64_t last_step = 0;   // `step` after this worker's previous step; others may have made steps in between
  int64_t end_step = 0;    // the number of steps after which the training ends; kEndless if unknown
  bool in_step = false;    // all workers make every step together
  // The parameters are held by servers: changes that a hook makes in this process are lost.
  bool keeps_parameters_elsewhere = false;
  bool has_rows = false;  // the model has sharded embeddings, whose rows `parameters` does not include
  torch::nn::Module* module = nullptr;  // the module of a Trainer; null in a Loop
  bool went_on = false;         // first_step is of no checkpoint: this worker joined a running training
  bool have_begun = false;      // the workers had begun these steps before this one was told of their start
  int64_t steps_per_epoch = 0;  // 0: unknown
  int64_t epoch = 0;            // the index of the current pass over the feed, from 0
  // In Hook::end(): a signal or --stop-after has ended the steps, and a later run continues.
  bool interrupted = false;
  MovingAverage* average = nullptr;  // what validations measure instead of the last weights; null: none
  // To be set by a hook that changes the parameters in end(), so that they are saved.
  bool save_at_end = false;
  // Only on the chief, and only with a log directory; else null.
  store::EventWriter* events = nullptr;
  std::string folder = {};  // the log directory of this training; "": nothing is written
  // In Hook::after_validation(): the name of the evaluation; "": the validation of fit() or a Loop.
  std::string evaluation = {};
  int evaluations = 0;  // the number of evaluations of this training, the validation included
  // The names of all their values are known before they are measured: one that is missing has no value then,
  // such as an area under a curve without examples of both classes.
  bool knows_values = false;
  // The values that hooks of the program tell (Hook::reported()), which no evaluation has.
  std::set<std::string> reported = {};
  // The wishes of this worker for the next step; a hook may add to them in before_step(). StepResult::wishes
  // has the combined wishes of all workers.
  Wishes wishes = {};
  // If a hook sets it, the training ends as if it were complete: after the next step or, if it is set during
  // a step, after the step that follows. By then all workers have been told; a single worker makes that step
  // as well, so that the weights do not depend on the number of workers. Workers that make steps of their own
  // (ps-async, or --backup) end after the current step. If the program is started again, the fit remains
  // complete, and the program continues after it.
  std::optional<std::string> stop_reason = {};

  // True if this process writes files for this training: the chief, or an evaluator to its own folder.
  bool writes() const { return group.is_chief() || context.identity().is_evaluator; }

  // Writes a checkpoint of the steps done; does nothing if checkpoints are disabled. With several workers all
  // of them have to call it after the same step: see `wishes`.
  void save_checkpoint();
  // Merges the counters of all workers in one exchange; every worker has to call it after the same step. Does
  // nothing if the workers do not evaluate together.
  void merge(const metrics::List& list);
  // If `has_rows`: returns the rows, without what their optimisers keep, as the part of a checkpoint
  // (store::kRowsPart) on the chief. All workers that are connected to each other call it after the same
  // step.
  Snapshot rows();
  // Evaluates now, on all workers after the same step if they evaluate together, else on this one alone.
  // Returns nullopt on a worker that takes no part. Random generators, buffers and modes are afterwards as
  // before.
  std::optional<std::map<std::string, double>> evaluate(const Evaluation& evaluation);
  // Tells all hooks the values of a validation (Hook::after_validation()), logs them and writes them to the
  // event file and the report. To be called after the same step on all workers that know the values.
  void report_validation(const std::map<std::string, double>& values);
  // As report_validation(), but of a named evaluation, and without writing to the event file.
  void report_evaluation(const std::string& name, const std::map<std::string, double>& values);
  // Calls `body` while the parameters have the values that validations measure: the average, if there is one.
  void with_average(const std::function<void()>& body) const;

  // Returns true if this worker's last step reached or passed a multiple of `every`, or reached the end. All
  // workers that make each step together get true after the same step, so that they may do something
  // together, such as evaluate. With ps-async each worker gets it after a step of its own.
  bool due(int64_t every) const { return passed(every) || (every > 0 && step == end_step); }
  // Like due(), but true on one task of the run only, the one that writes its files: for a line that is to be
  // printed once. With ps-async the steps are those after which it makes one of its own.
  bool due_once(int64_t every) const { return writes() && due(every); }
  // Returns true if this worker's last step reached or passed a multiple of `every`.
  bool passed(int64_t every) const { return every > 0 && step / every > last_step / every; }
};

// Work that is done besides the steps. A Trainer or Loop owns its hooks and calls them on its thread, in the
// order in which they were added; checkpoints are saved after all hooks were called. An exception from a hook
// ends the training. By default the methods do nothing.
class Hook {
 public:
  virtual ~Hook() = default;

  // Once, before after_start().
  virtual void begin(Training&) {}
  // The parameters have their initial or restored values.
  virtual void after_start(Training&) {}
  // This worker is about to make the first step of training.epoch since it was started or resumed.
  virtual void begin_epoch(Training&) {}
  // The last step of training.epoch has been made. Called after after_step().
  virtual void end_epoch(Training&) {}
  // The model has been validated or evaluated, by fit(), by a Loop or by a hook (hooks::evaluation,
  // Training::report_validation), with these values. If the evaluation has a name, it is their prefix:
  // "test_accuracy". With parameter servers and in-graph only the chief is told.
  virtual void after_validation(Training&, const std::map<std::string, double>& /*values*/) {}
  // In a task that evaluates beside the training, an evaluator: the parameters have the values of a new
  // checkpoint, of training.step. Of the other methods, only begin() and after_validation() are called there.
  virtual void evaluate(Training&) {}
  // Step number training.step is about to be made, or to be made again, since a worker was lost in it or an
  // audit has found a difference (--audit).
  virtual void before_step(Training&) {}
  // A lane of this worker has been computed; the parameters still have their values from before the step. Its
  // gradients may already be being sent, so this method must not communicate or make a backward pass.
  virtual void after_lane(Training&, int64_t /*lane*/, const Batch&, const LossOutput&) {}
  // The step is done, and counted in training.step.
  virtual void after_step(Training&, const StepResult&) {}
  // The last step is done, or the training was interrupted (Training::interrupted).
  virtual void end(Training&) {}
  // A checkpoint has been written to this folder. Called on the chief, between two steps or after end().
  virtual void after_save(Training&, const std::string& /*path*/, int64_t /*step*/) {}

  // The name of the value of an evaluation by which this hook decides; "" if it decides by none. If the names
  // of all values are known when the training starts, and none has this name, the training throws
  // InvalidArgument.
  virtual std::string monitored() const { return ""; }
  // The names of the values that this hook tells by Training::report_validation() or report_evaluation(), so
  // that another hook may monitor them.
  virtual std::vector<std::string> reported() const { return {}; }

  // The state of the hook that checkpoints contain, such as the best value so far; see StatePart. A resumed
  // run restores it before begin(). A hook with such a state needs a name.
  virtual std::string name() const { return ""; }
  virtual Snapshot state() const { return {}; }
  virtual void restore(const Snapshot& /*state*/) {}

  // The training ends with an error; end() is not called. If another task was lost, the parameters may have
  // the values of a partly applied step. Must not throw.
  virtual void on_error(Training&, const std::exception&) noexcept {}
};

}  // namespace tutti
