#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "tutti/base/config.h"
#include "tutti/base/every.h"
#include "tutti/data/feed.h"
#include "tutti/metrics/metric.h"
#include "tutti/train/hook.h"
#include "tutti/train/trainable.h"

namespace tutti::hooks {

// Returns the hooks that the flags ask for: progress, profile, and with a log directory summaries and, as the
// last one, checkpoints.
std::vector<std::unique_ptr<Hook>> of_flags(const RunConfig& config);

// Says which values of a validation are better. Auto: smaller ones if the name ends with "loss", "error",
// "mse" or "rmse", else greater ones.
enum class Goal { Auto, Smaller, Greater };

// Options of early_stopping().
struct EarlyStoppingOptions {
  std::string monitor = "loss";  // the name of a value of the validation
  Goal goal = Goal::Auto;        // which values are better
  int64_t patience = 0;          // the number of validations without an improvement that are accepted
  double min_delta = 0;          // the smallest change that counts as an improvement
  // If true, the model gets back the weights of its best validation when the training ends. Not possible with
  // parameter servers, which hold the weights.
  bool restore_best = false;
};

// Ends the training when a value of the validation does not improve any more. A resumed run remembers the
// best value; a fit that was ended in this way stays complete when the program is run again.
std::unique_ptr<Hook> early_stopping(const EarlyStoppingOptions& options = {});

// Options of keep_best().
struct KeepBestOptions {
  std::string monitor = "loss";  // the name of a value of the validation
  Goal goal = Goal::Auto;        // which values are better
  std::string folder = "best";   // in the log directory
};

// Saves the weights after each validation with a better value than all before: as the only checkpoint in
// LOGDIR/best, which tutti::load() and --resume weights can read. Only the chief writes, and only with a log
// directory.
std::unique_ptr<Hook> keep_best(const KeepBestOptions& options = {});

// Makes this evaluation during the training. Throws InvalidArgument if it has neither a feed nor a function.
std::unique_ptr<Hook> evaluation(Evaluation evaluation);

// Options of summaries().
struct SummariesOptions {
  int64_t every = 100;           // steps between scalars
  int64_t histograms_every = 0;  // steps between histograms of all parameters; 0: none
};

// Writes loss, learning rate and examples per second to the event file.
std::unique_ptr<Hook> summaries(const SummariesOptions& options = {});

// Options of batch_metrics().
struct BatchMetricsOptions {
  std::optional<int64_t> every = {};  // steps between values; empty: --summary-every; 0: never
  // Each value is over the batches of all workers in this many last steps. A resumed run begins with none of
  // these batches, and the log says how many there are.
  int64_t window = 1;
};

// Computes these metrics on the batches of the training, and writes them to stderr and to the event file: of
// the first step, shown as step 0, after every `every`-th step, and after the last one. The loss function has
// to return its predictions.
std::unique_ptr<Hook> batch_metrics(metrics::List list, const BatchMetricsOptions& options = {});

// Shows the progress on stderr: a live line on a terminal ("step 1,200/5,000  loss 0.0312  1,893 examples/s
// 0:34 left"), otherwise a plain line every ten seconds. On the chief only.
std::unique_ptr<Hook> progress();

// Records every operator of LibTorch in these steps into the context's timeline, on all workers. Without
// --timeline, only the chief records them, and writes them to `file` (trace_events.h).
std::unique_ptr<Hook> profile(StepInterval steps, std::string file);

// Shows the training on the page of the context (--web), which has to be there.
std::unique_ptr<Hook> web_page();

// Saves a checkpoint at the given interval, and one at the end. With Every::automatic, the chief saves the
// first one after the next step, measures how long the training stands still for it, and chooses the
// interval.
std::unique_ptr<Hook> checkpoint(Every every);
// The seconds in which one failure of a run is expected that has had so many in so many seconds: the mean of
// a rate that is believed to be one a day before anything was seen.
double expected_between_failures(int64_t failures, double seconds);
// The seconds between the end of a checkpoint, for which the training stands still for `cost` seconds, and
// the next one, so that least time is lost to checkpoints and to steps that are made again: sqrt(2 cost M),
// where M are the expected seconds between failures (J. W. Young, A first order approximation to the optimum
// checkpoint interval, CACM 17(9), 1974). At least one second, and so long that the training stands still for
// less than 3.5 % of its time.
double checkpoint_interval(double cost, double between_failures);

// Throws InvalidArgument if the loss of a lane is not finite, which ends the training before the parameters
// of any worker are updated with it, and names the first bad tensor of the batch, the parameters, the buffers
// or the predictions. Checks every step on the CPU, and every 25th on a GPU, since reading the loss waits for
// the GPU. If weights become bad between two checks, RunFolder does not save them.
void nan_guard(const Parameters& parameters, int64_t step, int64_t lane, const Batch& batch,
               const LossOutput& output);
// The same after a step of a loop, whose lanes need not be observed, from the sum of their losses; undefined:
// it is not known.
void nan_guard(int64_t step, const torch::Tensor& loss_sum);

}  // namespace tutti::hooks
