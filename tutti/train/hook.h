#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <optional>
#include <string>

#include "tutti/cluster/context.h"
#include "tutti/data/batch.h"
#include "tutti/metrics/metric.h"
#include "tutti/params/optimizer.h"
#include "tutti/params/parameters.h"
#include "tutti/store/event_file.h"
#include "tutti/train/strategy.h"
#include "tutti/train/trainable.h"

namespace tutti {

// A training that is under way, as its hooks see it: of a Trainer, or a Loop of one's own.
struct Training {
  static constexpr int64_t kEndless = std::numeric_limits<int64_t>::max();

  const Context& context;
  Parameters& parameters;
  Optimizer& optimizer;
  int64_t first_step = 0;  // where this run started or went on
  int64_t step = 0;        // steps done
  int64_t last_step = 0;   // when this worker's step before was done: others may have made some in between
  int64_t end_step = 0;    // it ends when so many are done; kEndless where nobody knows
  bool in_step = false;    // all workers make every step together
  bool went_on = false;    // where it started is no checkpoint: it went on without this worker
  // Of the chief, where there is a log directory; else none.
  store::EventWriter* events = nullptr;
  // Writes a checkpoint of the steps done; does nothing where none are written. With several workers all of
  // them call it after the same step: see `wishes`.
  std::function<void()> save_checkpoint = {};
  // Makes of what each worker has counted what all have; every worker calls it after the same step. Empty
  // where they do not evaluate together.
  std::function<void(metrics::Metric&)> merge = {};
  // Of this worker, for the next step; a hook may add to it in before_step(). StepResult::wishes says what
  // all do.
  Wishes wishes = {};
  // Set by a hook, it ends the training after this step, as if it had come to its end; with several workers
  // after the next one, when all have heard of it.
  std::optional<std::string> stop_reason = {};

  // Whether the steps done have come to a multiple of so many, or to the end, with the last of this worker.
  bool due(int64_t every) const {
    return every > 0 && (step / every > last_step / every || step == end_step);
  }
};

// Something that is done beside the steps. Trainer or Loop owns its hooks and calls them, all on its thread,
// in the order in which they were added; what one of them throws ends the training. Each method does nothing
// unless it is overridden.
class Hook {
 public:
  virtual ~Hook() = default;

  // Once, before after_start().
  virtual void begin(Training&) {}
  // The parameters are there, fresh or restored.
  virtual void after_start(Training&) {}
  // Step number training.step is about to be made.
  virtual void before_step(Training&) {}
  // A lane of this worker has been computed; the parameters are still those of before the step. Its gradients
  // may already be on their way into the sum: nothing else is to be sent here, and no backward pass made.
  virtual void after_lane(Training&, int64_t /*lane*/, const Batch&, const LossOutput&) {}
  // The step is done, and counted in training.step.
  virtual void after_step(Training&, const StepResult&) {}
  // The last step is done.
  virtual void end(Training&) {}
  // The training ends with an error; no end() follows. Where another task was lost, the parameters may be
  // those of a step half made. May not throw.
  virtual void on_error(Training&, const std::exception&) noexcept {}
};

}  // namespace tutti
