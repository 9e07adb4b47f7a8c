#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "tutti/cluster/context.h"
#include "tutti/comm/communicator.h"
#include "tutti/data/feed.h"
#include "tutti/metrics/metric.h"
#include "tutti/nn/pipe.h"
#include "tutti/params/optimizer.h"
#include "tutti/train/full_batch.h"
#include "tutti/train/trainable.h"
#include "tutti/train/trainer.h"

namespace tutti {

struct ModelFitOptions {
  int64_t steps = 0;  // of each start; as in FitOptions
  int64_t epochs = 0;
  int64_t restarts = 1;  // trainings from other first weights, of which the best is kept
};

// A model that is said in a few lines: what goes in, what is computed from it, what is to become small, what
// is to be known. Values are named once; a Trainer does the rest.
//   tutti::Model model(ctx);
//   const auto desc = model.input("desc");
//   const auto targ = model.target("targ");
//   const auto logits = model.net(nn::WindowInput() | nn::Dense(20, torch::tanh) | nn::Dense(1), desc);
//   model.output("pred", torch::sigmoid, logits);
//   model.loss("xent", nn::xent_uniform_sum, targ, logits);
//   model.metric(metrics::auc("targ"), logits);
//   model.fit(feed.shuffle(), torch::optim::AdamOptions(1e-3), {.steps = 1000, .restarts = 2});
// Every worker says and calls the same. Not thread-safe.
class Model {
 public:
  // A tensor with a row an example, or the weights: what it is is known for each batch. Only of use to the
  // model that made it.
  class Value {
   private:
    friend class Model;
    Value(const Model& of, size_t index) : of_(&of), index_(index) {}
    const Model* of_;
    size_t index_;
  };

  // The context outlives it.
  explicit Model(const Context& context);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // Of the feed's batches. Targets are not there when predictions are asked for.
  Value input(const std::string& name);
  Value target(const std::string& name);
  // What a net makes of it; its layers are made when it is first known what comes in.
  Value net(const nn::Pipe& pipe, Value rows);
  // All weights of all nets in one vector; what layers are shifted by is left out.
  Value weights();
  // What a function makes of tensors.
  template <class Function, class... Values>
  Value apply(Function function, Values... values) {
    return add_call(unpacked(std::move(function), std::index_sequence_for<Values...>()), {values...});
  }

  // What predict() gives, under this name.
  void output(const std::string& name, Value value);
  template <class Function, class... Values>
  void output(const std::string& name, Function function, Values... values) {
    output(name, apply(std::move(function), values...));
  }
  // One number a batch; what is trained is the sum of all losses. Lanes are averaged, whatever they are.
  void loss(const std::string& name, Value value);
  template <class Function, class... Values>
  void loss(const std::string& name, Function function, Values... values) {
    loss(name, apply(std::move(function), values...));
  }
  // What evaluate() tells, of these predictions. Losses and metrics have names of their own.
  void metric(metrics::MetricPtr metric, Value prediction);

  // Trains it, once in its life: that many times, each from weights that a seed of its own has given, and
  // keeps the one whose loss over the whole feed, in batches as they were trained on, is least; all workers
  // agree which. A start whose loss is no number loses; one that the NaN guard ends, ends all. With --logdir
  // every start has a folder of its own there, so that a run that was interrupted goes on in the start in
  // which it was. Several starts need workers that talk to each other: with servers, or a master, that is an
  // InvalidArgument.
  void fit(const data::Feed& feed, const OptimizerOptions& optimizer, const ModelFitOptions& options = {},
           const TrainerOptions& trainer = {});
  // The same with all examples at once (full_batch.h); `steps` is how often the optimiser is called, once
  // where it is 0. Workers have to talk to each other for it.
  void fit(const data::Feed& feed, const torch::optim::LBFGSOptions& optimizer,
           const ModelFitOptions& options = {});

  // After fit(). Metrics, and losses as means over the batches, by name.
  std::map<std::string, double> evaluate(const data::Feed& feed);
  // The outputs' columns side by side, a row an example in the feed's order. One worker may call it alone.
  torch::Tensor predict(const data::Feed& feed);
  // The same as a table (.csv, else TSV) with the examples' IDs; the chief writes it, and the others do
  // nothing.
  void predict(const data::Feed& feed, const std::string& path);

  // Of the start that was kept.
  Trainer& trainer();

 private:
  using Tensors = std::vector<torch::Tensor>;
  using Call = std::function<torch::Tensor(const Tensors&)>;
  // One value: of a batch, of a net, of a function, or the weights.
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
  // The nets of one start.
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
  // Of the start that was kept; the trainer has references to its context.
  std::unique_ptr<const Context> trained_in_;
  std::shared_ptr<Instance> instance_;
  std::unique_ptr<Trainer> trainer_;
};

}  // namespace tutti
