#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/cluster/context.h"
#include "tutti/comm/communicator.h"
#include "tutti/data/feed.h"
#include "tutti/metrics/metric.h"
#include "tutti/params/lanes.h"
#include "tutti/store/report.h"
#include "tutti/train/device_clock.h"
#include "tutti/train/hook.h"
#include "tutti/train/replica.h"
#include "tutti/train/schedule.h"
#include "tutti/train/session.h"
#include "tutti/train/strategy.h"
#include "tutti/train/team.h"
#include "tutti/train/trainable.h"

namespace tutti {

struct TrainerOptions {
  Schedule learning_rate = {};  // empty: the optimiser's own rate, constant
  double clip_norm = 0;         // the largest norm of the mean gradient of a step; 0: any
  // Empty: connected as the flags and the launcher say.
  std::shared_ptr<comm::Communicator> communicator = {};
};

struct FitOptions {
  int64_t steps = 0;   // 0: as --steps and --epochs say
  int64_t epochs = 0;  // of this feed
};

struct EvaluateOptions {
  int64_t batch = 500;
};

// Trains one model as the flags say: strategy, lanes, precision, how far, checkpoints, report. Created once a
// program; fit() may be called several times, with several feeds, one after the other. Not thread-safe.
class Trainer {
 public:
  // `loss(net, batch)` returns the mean loss over the batch, or {loss, predictions}. The optimiser is named
  // by its options:
  //   Trainer trainer(ctx, net, torch::optim::AdamOptions(1e-4), [](Net& net, const Batch& b) { return ...;
  //   });
  template <class Net, class Loss>
  Trainer(const Context& context, const Net& net, const OptimizerOptions& optimizer, Loss loss,
          const TrainerOptions& options = {})
      : Trainer(context, make_trainable(net, std::move(loss)), optimizer, options) {}
  Trainer(const Context& context, Trainable model, const OptimizerOptions& optimizer,
          const TrainerOptions& options = {});
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Called after those that the flags ask for. Keeps it.
  void add_hook(std::unique_ptr<Hook> hook);

  // Trains up to the step that options or flags say; feeds and options are the same on all workers. A run
  // that is resumed goes on with the example after the last one that is in its weights; a fit() that was
  // finished before returns at once. After SIGTERM or SIGINT it finishes the step, saves a checkpoint and
  // throws Interrupted; what comes too late for that, when the last step is made, ends the next fit().
  void fit(const data::Feed& feed, const FitOptions& options = {});

  // The metrics' values over the whole feed, in evaluation mode, by name; they also go into report and event
  // file.
  std::map<std::string, double> evaluate(const data::Feed& feed, const metrics::List& list,
                                         const EvaluateOptions& options = {});
  // The same, of which nothing is told to anybody else.
  std::map<std::string, double> measure(const data::Feed& feed, const metrics::List& list,
                                        const EvaluateOptions& options = {});
  // The predictions for all examples of the feed, one row each, in its order. One worker may call it alone.
  //
  // Where evaluate() or predict() comes before the first fit(), it starts the run: the weights are those of
  // the newest checkpoint, as --resume says. Then every worker has to call it.
  torch::Tensor predict(const data::Feed& feed, const EvaluateOptions& options = {});

  Parameters& parameters() { return replica_.parameters(); }
  Optimizer& optimizer() { return replica_.optimizer(); }
  // Steps done.
  int64_t step() const { return progress_.step; }
  const store::Report& report() const { return report_; }
  // Writes it once more, where another trainer has written its own meanwhile.
  void write_report() const { session_.write(report_); }

 private:
  void start_once();
  void start();
  FitOptions how_far(const FitOptions& options) const;
  std::vector<std::string> plan_of_fit(const data::Feed& feed, const FitOptions& options) const;
  int64_t end_step(const data::Sampler& sampler, const FitOptions& options) const;
  Training make_training(int64_t end_step);
  std::chrono::milliseconds feed_timeout() const;
  void save();
  [[noreturn]] void fail_too_few(const data::Sampler& sampler) const;
  void require_data_in_every_lane(const Training& training, const data::Sampler& sampler) const;
  void run_steps(Training& training, const data::Feed& feed, const data::Sampler& sampler);
  void one_step(Training& training, data::BatchQueue& queue, int64_t stop);
  void fill_report(double seconds, int64_t examples);
  std::vector<std::string> plan() const;
  void start_again(Training& training, const Error& error);
  void begin_again(const Progress& before);
  template <class Body>
  void for_each_batch(const data::Feed& feed, const data::Sampler& sampler, const LaneRange& lanes,
                      Body body);
  template <class Call>
  void for_each_hook(Call call);
  template <class Body>
  void or_abandon(const char* what, Body body);

  const Context& context_;
  const TrainerOptions options_;
  const std::unique_ptr<Team> team_;
  Replica replica_;
  Session session_;
  std::unique_ptr<Strategy> strategy_;  // once started
  std::vector<std::unique_ptr<Hook>> hooks_;
  Progress progress_;
  int64_t next_fit_ = 0;
  StepResult last_step_;
  DeviceClock device_clock_;
  store::Report report_;
};

}  // namespace tutti
