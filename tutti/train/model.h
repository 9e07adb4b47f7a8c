#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/optim/lbfgs.h>
#include <torch/types.h>

#include "tutti/cluster/context.h"
#include "tutti/data/feed.h"
#include "tutti/metrics/metric.h"
#include "tutti/nn/pipe.h"
#include "tutti/params/optimizer.h"
#include "tutti/train/trainable.h"
#include "tutti/train/trainer.h"

namespace tutti {

// The length of Model::fit().
struct ModelFitOptions {
  int64_t steps = 0;     // per restart; as in FitOptions
  int64_t epochs = 0;    // per restart; as in FitOptions
  int64_t restarts = 1;  // trainings from different initial weights; the best one is kept
};

// Describes a model in a few lines: its inputs, its layers, the losses to minimise, and the metrics and
// outputs to report. Values are declared once; a Trainer does the rest.
//   tutti::Model model(ctx);
//   const auto desc = model.input("desc");
//   const auto targ = model.target("targ");
//   const auto logits = model.net(nn::WindowInput() | nn::Dense(20, torch::tanh) | nn::Dense(1), desc);
//   model.output("pred", torch::sigmoid, logits);
//   model.loss("xent", nn::xent_uniform_sum, targ, logits);
//   model.metric(metrics::auc("targ"), logits);
//   model.fit(feed.shuffle(), torch::optim::AdamOptions(1e-3), {.steps = 1000, .restarts = 2});
// All workers have to make the same calls. Not thread-safe.
class Model {
 public:
  // A placeholder for a tensor with one row per example, or for the weights; it gets a new tensor with each
  // batch. Can only be used with the model that created it.
  class Value {
   private:
    friend class Model;
    Value(const Model& of, size_t index) : of_(&of), index_(index) {}
    const Model* of_;
    size_t index_;
  };

  // The context must outlive the model.
  explicit Model(const Context& context);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // Tensors of the feed's batches, by name. Targets are not available in predict().
  Value input(const std::string& name);
  Value target(const std::string& name);
  // The output of a net. Its layers are created when the number of input columns is first known.
  Value net(const nn::Pipe& pipe, Value rows);
  // All weights of all nets in one vector. Does not include biases.
  Value weights();
  // The result of applying a function to the tensors of these values.
  template <class Function, class... Values>
  Value apply(Function function, Values... values) {
    return add_call(unpacked(std::move(function), std::index_sequence_for<Values...>()), {values...});
  }

  // Adds columns of this name to the result of predict().
  void output(const std::string& name, Value value);
  template <class Function, class... Values>
  void output(const std::string& name, Function function, Values... values) {
    output(name, apply(std::move(function), values...));
  }
  // The value has to be a single number per batch. Training minimises the sum of all losses, averaged over
  // the lanes.
  void loss(const std::string& name, Value value);
  template <class Function, class... Values>
  void loss(const std::string& name, Function function, Values... values) {
    loss(name, apply(std::move(function), values...));
  }
  // Adds a metric of these predictions to the result of evaluate(). Losses and metrics need different names.
  void metric(metrics::MetricPtr metric, Value prediction);

  // Trains the model; can be called once. Trains `restarts` times, each from initial weights of its own seed,
  // and keeps the result with the lowest loss over the whole feed, computed in batches of the same size as in
  // training; all workers agree on it. A restart that ends with a NaN loss is discarded. If the NaN guard
  // stops a restart, the whole fit stops. With --logdir every restart has a folder of its own there, so an
  // interrupted run resumes in the restart that it was in. More than one restart requires workers that are
  // connected to each other: with servers, or with a master, it is an InvalidArgument.
  void fit(const data::Feed& feed, const OptimizerOptions& optimizer, const ModelFitOptions& options = {},
           const TrainerOptions& trainer = {});
  // Like fit(), but every evaluation of the loss covers all examples, for small data: each worker keeps those
  // of its lanes in memory. `steps` is the number of calls of torch::optim::LBFGS, each of which makes up to
  // max_iter iterations; 0 means one. Random numbers in the model are the same in every evaluation. There are
  // no checkpoints and no hooks; of the trainer's options, only `group` and `exports` are used. Throws
  // InvalidArgument if the final loss is not finite. Requires workers that are connected to each other.
  void fit(const data::Feed& feed, const torch::optim::LBFGSOptions& optimizer,
           const ModelFitOptions& options = {}, const TrainerOptions& trainer = {});

  // Returns the metrics, and the losses as means over the batches, by name. Requires fit().
  std::map<std::string, double> evaluate(const data::Feed& feed);
  // Returns the columns of all outputs side by side, with one row per example in the feed's order. Can be
  // called by a single worker.
  torch::Tensor predict(const data::Feed& feed);
  // Writes the predictions and the examples' IDs to a table (CSV if the name ends in .csv, else TSV). The
  // chief writes it; on other workers this does nothing.
  void predict(const data::Feed& feed, const std::string& path);

  // The trainer of the restart that was kept.
  Trainer& trainer();

 private:
  using Tensors = std::vector<torch::Tensor>;
  using Call = std::function<torch::Tensor(const Tensors&)>;
  // One value: a tensor of a batch, the result of a net or of a function, or the weights.
  struct Node {
    std::string from_batch = {};
    std::optional<nn::Pipe> pipe = {};
    Call call = {};
    std::vector<size_t> of = {};
    bool is_target = false;
  };
  struct Named {
    std::string name;
    Value value;
  };
  struct Measured {
    metrics::MetricPtr metric;
    Value prediction;
  };
  // The nets of one restart.
  class Instance;

  template <class Function, size_t... I>
  static Call unpacked(Function function, std::index_sequence<I...>) {
    return
        [function = std::move(function)](const Tensors& of) -> torch::Tensor { return function(of[I]...); };
  }
  Value add(Node node);
  Value add_call(Call call, const std::vector<Value>& of);
  void require_new_name(const std::string& name) const;
  void require_own(const Value& value) const;
  void require_ready(const ModelFitOptions& options) const;
  std::shared_ptr<Instance> make_instance(const data::Feed& feed, int64_t start) const;
  Trainable trainable(const std::shared_ptr<Instance>& instance) const;
  Signature signature(const std::shared_ptr<Instance>& instance) const;
  torch::Tensor objective(Instance& instance, const Batch& batch) const;
  torch::Tensor predictions(Instance& instance, const Batch& batch) const;
  metrics::List metrics_of(const std::shared_ptr<Instance>& instance) const;
  metrics::MetricPtr objective_metric() const;
  std::vector<std::string> columns() const;

  const Context& context_;
  std::vector<Node> nodes_;
  std::vector<Named> outputs_;
  std::vector<Named> losses_;
  std::vector<Measured> measured_;
  // The state of the restart that was kept; the trainer has references to its context.
  std::shared_ptr<Instance> instance_;
  std::unique_ptr<Trainer> trainer_;
};

}  // namespace tutti
