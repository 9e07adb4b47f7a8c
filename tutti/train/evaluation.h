#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "tutti/base/log.h"
#include "tutti/cluster/context.h"
#include "tutti/comm/communicator.h"
#include "tutti/data/batch.h"
#include "tutti/data/feed.h"
#include "tutti/data/sampler.h"
#include "tutti/metrics/metric.h"
#include "tutti/params/lanes.h"
#include "tutti/params/parameters.h"
#include "tutti/train/trainable.h"

// How a feed is evaluated, by a Trainer or a Loop: batch by batch, in the order of the feed. The batches
// depend on the lanes of the run only if each lane has its own examples, and never on the number of workers,
// so metrics have the same bits on any number.
namespace tutti {

struct MeasureOptions {
  int64_t batch = 500;  // examples
  // Uses only the first so many batches of the feed; 0: all. If each lane of the run has its own examples,
  // the lanes take turns.
  int64_t steps = 0;
};

// Deals the batches of an evaluation to `parts` parts. Part i has the batches of
// lanes_of(i, parts, sampler.options().lanes).
struct EvaluationBatches {
  data::Sampler sampler;
  int64_t most = 0;  // the number of batches; those of one step are counted in the order of the lanes

  int64_t end_step() const;
  LaneRange lanes_of(int part, int parts) const;
};
EvaluationBatches evaluation_batches(const data::Feed& feed, int64_t lanes_of_run, int parts,
                                     const MeasureOptions& options);

// Calls `body` for each batch of these lanes that has examples. The device is the one that uses the batches.
void for_each_batch(const Context& context, const data::Feed& feed, const EvaluationBatches& batches,
                    const LaneRange& lanes, torch::Device device,
                    const std::function<void(const Batch&)>& body);

// The advice of a training about the forward passes of its evaluations. Each text is logged once.
class PassAdvice {
 public:
  // Silent advice logs nothing, as that of a worker that does not write the values.
  explicit PassAdvice(const Log* log = nullptr) : log_(log) {}

  // Say how to save a forward pass, if a batch needs two because the loss function returns no predictions, or
  // because those of the program's own Trainable::predict may be others.
  void loss_lacks_predictions();
  void predict_is_own();
  // Warns if the loss function returns other predictions than those of `predict`, which is called only for
  // the first batch of the training's evaluations. Does nothing if it throws an error.
  void compare(const torch::Tensor& of_loss, const std::function<torch::Tensor()>& predict);

 private:
  void two_passes(std::string_view how_to_make_one);

  const Log* log_;  // null: silent
  bool has_advised_ = false;
  bool has_compared_ = false;
};

// Counts batches in metrics and in the mean of the loss function. A batch takes one forward pass if the loss
// function returns its predictions (evaluates_by_loss()), or if only one of the two functions is needed, and
// else two passes.
class BatchCounter {
 public:
  // The functions of a model in evaluation mode.
  struct Functions {
    std::function<LossOutput(const Batch&)> loss;  // empty: there is no mean loss
    std::function<torch::Tensor(const Batch&)> predict;
    bool by_loss = false;  // whether predictions that `loss` returns are those of the model
  };

  // Without `loss`, or if a metric is called "loss", the metrics are those of `predict`.
  BatchCounter(metrics::List list, Functions functions, PassAdvice& advice);
  void count(const Batch& batch);
  // Returns the metrics and, as the last one, the mean loss.
  const metrics::List& all() const { return all_; }

 private:
  torch::Tensor pass(const Batch& batch);

  const bool needs_predictions_;
  Functions functions_;
  PassAdvice& advice_;
  const std::shared_ptr<torch::Tensor> batch_loss_;  // of the present batch; shared with the last metric
  metrics::List all_;
};

// The share of one worker in an evaluation.
struct EvaluationPart {
  int part = 0;
  int parts = 1;
  int64_t lanes_of_run = 1;
  torch::Device device = torch::kCPU;
};
// Counts these metrics of a model, which have been reset, over one part of the feed: in evaluation mode,
// without gradients, and without disturbing the program's random numbers. Returns them with the mean loss, if
// the model has a loss function. Throws InvalidArgument if the model makes no predictions for the metrics.
metrics::List count_part(const Context& context, const Trainable& model, const data::Feed& feed,
                         const metrics::List& list, const MeasureOptions& options, const EvaluationPart& part,
                         PassAdvice& advice);

// Returns the values of the metrics that have one, by name. Logs why the others have none, if `says` is set.
enum class Say { Nothing, WhyNoValue };
std::map<std::string, double> values_of(const Context& context, const metrics::List& list, Say say);

// Returns the values of rank 0 on all ranks.
std::map<std::string, double> values_of_chief(comm::Communicator& comm,
                                              const std::map<std::string, double>& own);

// Copies the buffers of nets, and gives them their values back at its end.
class BufferScope {
 public:
  void add(const Parameters& parameters);

  BufferScope() = default;
  ~BufferScope();
  BufferScope(const BufferScope&) = delete;
  BufferScope& operator=(const BufferScope&) = delete;

 private:
  std::vector<std::pair<torch::Tensor, torch::Tensor>> buffers_;
};

}  // namespace tutti
