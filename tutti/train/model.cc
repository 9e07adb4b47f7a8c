#include "tutti/train/model.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <numeric>
#include <span>

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/cluster/roles.h"
#include "tutti/metrics/inputs.h"
#include "tutti/metrics/metrics.h"

namespace tutti {
namespace {

constexpr const char* kObjective = "loss";  // the name of the sum of all losses among the metrics

using Shape = std::vector<int64_t>;

int64_t columns_of(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

// Returns the columns of the first so many parts.
int64_t columns_of(const std::vector<Shape>& shapes, size_t parts) {
  int64_t columns = 0;
  for (size_t i = 0; i < parts; ++i) columns += columns_of(shapes.at(i));
  return columns;
}

torch::Tensor as_columns(const torch::Tensor& rows, int64_t examples) {
  if (rows.dim() == 0 || rows.size(0) != examples)
    fail(ErrorKind::InvalidArgument, "a prediction has {} rows, expected one for each of the {} examples",
         rows.dim() == 0 ? 0 : rows.size(0), examples);
  return rows.reshape({examples, examples > 0 ? rows.numel() / examples : 0}).to(at::kFloat);
}

// Quotes a cell for the format of the table.
std::string cell(const std::string& text, bool csv) {
  if (text.find_first_of(csv ? ",\"\r\n" : "\t\r\n") == std::string::npos) return text;
  if (!csv)
    fail(ErrorKind::InvalidArgument,
         "an ID contains a tab or a line break, which a TSV file cannot represent: use a file name that ends "
         "in .csv");
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

// Returns the description of the input for which a net is built; the statistics are computed only on demand.
nn::PipeInput input_of(const data::Feed& feed, const std::string& name) {
  if (feed.size() == 0) fail(ErrorKind::InvalidArgument, "the feed has no examples to train on");
  const torch::Tensor row = feed.read(std::vector<int64_t>{0})[name];
  return {row.numel(), [&feed, name] { return feed.statistics(name); }};
}

}  // namespace

class Model::Instance {
 public:
  Instance(const std::vector<Node>& nodes, const data::Feed& feed) : nodes_(nodes), nets_(nodes.size()) {
    root_ = std::make_shared<torch::nn::Module>("Model");
    int64_t count = 0;
    for (size_t i = 0; i < nodes.size(); ++i) {
      const Node& node = nodes[i];
      if (!node.pipe) continue;
      const size_t in = node.of[0];
      if (nodes[in].from_batch.empty() && !nodes[in].pipe)
        fail(ErrorKind::InvalidArgument,
             "the input of a net has to be an input of the model or another net, since only their columns "
             "are known in advance");
      const nn::PipeNet net = node.pipe->build(nodes[in].pipe ? nn::PipeInput{nets_[in]->columns()}
                                                              : input_of(feed, nodes[in].from_batch));
      nets_[i] = net.ptr();
      root_->register_module(fmt::format("net{}", ++count), nets_[i]);
    }
    if (count == 0) fail(ErrorKind::InvalidArgument, "the model has no net, so there is nothing to train");
  }

  const std::shared_ptr<torch::nn::Module>& root() const { return root_; }

  // The values for one batch, each computed once.
  class Values {
   public:
    Values(Instance& instance, const Batch& batch)
        : instance_(instance), batch_(batch), known_(instance.nodes_.size()) {}
    const torch::Tensor& operator[](size_t index) {
      if (!known_[index].defined()) known_[index] = instance_.compute(index, *this);
      return known_[index];
    }
    const Batch& batch() const { return batch_; }

   private:
    Instance& instance_;
    const Batch& batch_;
    Tensors known_;
  };

  // The shapes of the parts of predictions(), without their first dimension, in order.
  std::vector<Shape> shapes;

 private:
  torch::Tensor compute(size_t index, Values& values) {
    const Node& node = nodes_[index];
    if (!node.from_batch.empty()) return values.batch()[node.from_batch];
    if (node.pipe) return nets_[index]->forward(values[node.of[0]]);
    if (!node.call) return weights();
    Tensors of;
    for (const size_t argument : node.of) of.push_back(values[argument]);
    return node.call(of);
  }
  torch::Tensor weights() const {
    Tensors all;
    for (const torch::Tensor& parameter : root_->parameters()) {
      if (parameter.requires_grad() && parameter.dim() > 1) all.push_back(parameter.flatten());
    }
    return at::cat(all);
  }

  const std::vector<Node>& nodes_;
  std::shared_ptr<torch::nn::Module> root_;
  std::vector<std::shared_ptr<nn::PipeNetImpl>> nets_;  // [node]; null for nodes that are not nets
};

namespace {

// A metric of one of the parts that predictions are composed of.
class OfPart final : public metrics::Metric {
 public:
  using Shapes = std::function<const std::vector<Shape>&()>;

  OfPart(metrics::MetricPtr metric, Shapes shapes, size_t part)
      : metric_(std::move(metric)), shapes_(std::move(shapes)), part_(part) {}

  const std::string& name() const override { return metric_->name(); }
  std::vector<std::string> columns() const override { return metric_->columns(); }
  void update(const torch::Tensor& prediction, const Batch& batch) override {
    Shape shape = shapes_().at(part_);
    const torch::Tensor columns = prediction.narrow(1, columns_of(shapes_(), part_), columns_of(shape));
    if (shape.size() < 2) return metric_->update(columns, batch);
    shape.insert(shape.begin(), batch.size());
    metric_->update(columns.reshape(shape), batch);
  }
  std::vector<double> counters() const override { return metric_->counters(); }
  void merge(std::span<const double> counters) override { metric_->merge(counters); }
  std::optional<double> value() const override { return metric_->value(); }
  std::string reason() const override { return metric_->reason(); }
  std::vector<metrics::CurvePoint> curve() const override { return metric_->curve(); }
  bool has_uneven_thresholds() const override { return metric_->has_uneven_thresholds(); }
  void reset() override { metric_->reset(); }
  std::unique_ptr<Metric> clone() const override {
    return std::make_unique<OfPart>(metric_->clone(), shapes_, part_);
  }

 private:
  const metrics::MetricPtr metric_;
  const Shapes shapes_;
  const size_t part_;
};

}  // namespace

Model::Model(const Context& context) : context_(context) {}

Model::~Model() = default;

Model::Value Model::add(Node node) {
  if (trainer_)
    fail(ErrorKind::InvalidArgument, "the model has already been trained: define all of it before fit()");
  nodes_.push_back(std::move(node));
  return {*this, nodes_.size() - 1};
}

Model::Value Model::add_call(Call call, const std::vector<Value>& of) {
  Node node{.call = std::move(call)};
  for (const Value& argument : of) {
    require_own(argument);
    node.of.push_back(argument.index_);
  }
  return add(std::move(node));
}

void Model::require_own(const Value& value) const {
  if (value.of_ != this) fail(ErrorKind::InvalidArgument, "this value belongs to another model");
}

Model::Value Model::input(const std::string& name) { return add({.from_batch = name}); }

Model::Value Model::target(const std::string& name) { return add({.from_batch = name, .is_target = true}); }

Model::Value Model::net(const nn::Pipe& pipe, Value rows) {
  require_own(rows);
  return add({.pipe = pipe, .of = {rows.index_}});
}

Model::Value Model::weights() { return add({}); }

void Model::output(const std::string& name, Value value) {
  require_own(value);
  for (const Named& other : outputs_) {
    if (other.name == name) fail(ErrorKind::InvalidArgument, "two outputs are called '{}'", name);
  }
  outputs_.push_back({name, value});
}

void Model::loss(const std::string& name, Value value) {
  require_own(value);
  require_new_name(name);
  losses_.push_back({name, value});
}

void Model::metric(metrics::MetricPtr metric, Value prediction) {
  require_own(prediction);
  require_new_name(metric->name());
  measured_.push_back({std::move(metric), prediction});
}

// evaluate() returns losses and metrics by name, so the names have to be distinct.
void Model::require_new_name(const std::string& name) const {
  const auto is_called = [&](const auto& other) { return other.name == name; };
  const auto is_measured = [&](const Measured& other) { return other.metric->name() == name; };
  if (name == kObjective)
    fail(ErrorKind::InvalidArgument, "'{}' is the name of the sum of all losses: use another name", name);
  if (std::any_of(losses_.begin(), losses_.end(), is_called) ||
      std::any_of(measured_.begin(), measured_.end(), is_measured))
    fail(ErrorKind::InvalidArgument, "two losses or metrics are called '{}'", name);
}

torch::Tensor Model::objective(Instance& instance, const Batch& batch) const {
  Instance::Values values(instance, batch);
  torch::Tensor sum;
  for (const auto& [name, value] : losses_) {
    const torch::Tensor& loss = values[value.index_];
    if (loss.numel() != 1)
      fail(ErrorKind::InvalidArgument, "the loss '{}' has {} numbers, expected a single one", name,
           loss.numel());
    sum = sum.defined() ? sum + loss.reshape({}) : loss.reshape({});
  }
  return sum;
}

// Concatenates the outputs and, if the batch has all targets, the predictions for the metrics, and each loss,
// the same in every row.
torch::Tensor Model::predictions(Instance& instance, const Batch& batch) const {
  Instance::Values values(instance, batch);
  Tensors parts;
  instance.shapes.clear();
  const auto add = [&](const torch::Tensor& rows) {
    parts.push_back(as_columns(rows, batch.size()));
    instance.shapes.push_back(rows.sizes().slice(1).vec());
  };
  for (const Named& output : outputs_) add(values[output.value.index_]);
  const bool has_targets = std::all_of(nodes_.begin(), nodes_.end(), [&](const Node& node) {
    return !node.is_target || batch.has(node.from_batch);
  });
  if (has_targets) {
    for (const Measured& measured : measured_) add(values[measured.prediction.index_]);
    for (const Named& loss : losses_)
      add(values[loss.value.index_].reshape({1, 1}).expand({batch.size(), 1}));
  }
  return at::cat(parts, 1);
}

metrics::List Model::metrics_of(const std::shared_ptr<Instance>& instance) const {
  const auto shapes = [instance]() -> const std::vector<Shape>& { return instance->shapes; };
  size_t part = outputs_.size();
  metrics::List all;
  for (const Measured& measured : measured_)
    all.push_back(std::make_shared<OfPart>(measured.metric, shapes, part++));
  const auto first = [](const torch::Tensor& prediction, const Batch&) { return prediction.select(1, 0); };
  for (const Named& loss : losses_)
    all.push_back(std::make_shared<OfPart>(metrics::mean(loss.name, first), shapes, part++));
  all.push_back(objective_metric());
  return all;
}

// The losses are the last columns.
metrics::MetricPtr Model::objective_metric() const {
  const auto losses = static_cast<int64_t>(losses_.size());
  return metrics::mean(kObjective, [losses](const torch::Tensor& prediction, const Batch&) {
    return prediction.narrow(1, prediction.size(1) - losses, losses).to(at::kDouble).sum(1);
  });
}

std::shared_ptr<Model::Instance> Model::make_instance(const data::Feed& feed, int64_t start) const {
  torch::manual_seed(static_cast<uint64_t>(context_.config().training.seed + start));
  return std::make_shared<Instance>(nodes_, feed);
}

Trainable Model::trainable(const std::shared_ptr<Instance>& instance) const {
  return {.module = instance->root(),
          .loss = [this, instance](const Batch& batch) -> LossOutput { return objective(*instance, batch); },
          .predict = [this, instance](const Batch& batch) { return predictions(*instance, batch); },
          .script = {}};
}

// The outputs, from the inputs alone.
Signature Model::signature(const std::shared_ptr<Instance>& instance) const {
  Signature signature{.outputs = {}};
  for (const Node& node : nodes_) {
    const bool is_known = std::find(signature.inputs.begin(), signature.inputs.end(), node.from_batch) !=
                          signature.inputs.end();
    if (!node.from_batch.empty() && !node.is_target && !is_known) signature.inputs.push_back(node.from_batch);
  }
  for (const Named& output : outputs_) signature.outputs.push_back(output.name);
  signature.function = [this, instance](const Batch& batch) {
    Instance::Values values(*instance, batch);
    Tensors outputs;
    for (const Named& output : outputs_) outputs.push_back(values[output.value.index_]);
    return outputs;
  };
  return signature;
}

void Model::require_ready(const ModelFitOptions& options) const {
  if (trainer_)
    fail(ErrorKind::InvalidArgument, "the model has already been trained: use its trainer() to continue");
  if (losses_.empty()) fail(ErrorKind::InvalidArgument, "the model has no loss, so it cannot be trained");
  if (options.restarts < 1)
    fail(ErrorKind::InvalidArgument, "{} restarts are requested, expected at least one", options.restarts);
}

void Model::fit(const data::Feed& feed, const OptimizerOptions& optimizer, const ModelFitOptions& options,
                const TrainerOptions& trainer) {
  require_ready(options);
  const RunConfig& config = context_.config();
  const bool several = options.restarts > 1;
  if (several && (has_servers(context_.cluster()) || config.training.strategy == "in-graph"))
    fail(ErrorKind::InvalidArgument,
         "{} restarts are requested, but parameter servers and masters support only one: use --strategy "
         "allreduce, or one restart",
         options.restarts);
  std::optional<Group> all = trainer.group;
  if (several && !all) all = connect(context_);
  std::optional<double> least;
  std::unique_ptr<Trainer> best;
  for (int64_t start = 0; start < options.restarts; ++start) {
    RunConfig of_start = config;
    RunConfig::Checkpoints& checkpoints = of_start.checkpoints;
    if (several && !checkpoints.logdir.empty())
      checkpoints.logdir =
          (std::filesystem::path(checkpoints.logdir) / fmt::format("start-{}", start + 1)).string();
    // An earlier run may have reached only the first start.
    if (start > 0 && checkpoints.resume == "must") checkpoints.resume = "auto";
    const auto instance = make_instance(feed, start);
    TrainerOptions how = trainer;
    if (!how.exports.signature.function && !outputs_.empty()) how.exports.signature = signature(instance);
    how.group = several ? all->split(0) : all;
    auto candidate = std::make_unique<Trainer>(context_.with(of_start), trainable(instance), optimizer, how);
    candidate->fit(feed, {.steps = options.steps, .epochs = options.epochs});
    if (several) {
      const auto measured = candidate->measure(feed, {objective_metric()}, {.batch = config.training.batch});
      const auto found = measured.find(kObjective);
      const double loss = found == measured.end() ? std::numeric_limits<double>::quiet_NaN() : found->second;
      if (candidate->group().is_chief())
        context_.log().info("start {} of {}: loss {:.6g}", start + 1, options.restarts, loss);
      if (best && !(loss < *least) && !std::isnan(*least)) continue;
      least = loss;
    }
    best = std::move(candidate);
    instance_ = instance;
  }
  trainer_ = std::move(best);
  if (several) trainer_->write_report();
}

Trainer& Model::trainer() {
  if (!trainer_) fail(ErrorKind::InvalidArgument, "the model has not been trained yet: call fit() first");
  return *trainer_;
}

std::map<std::string, double> Model::evaluate(const data::Feed& feed) {
  if (feed.size() > 0) {
    const Batch example = feed.read(std::vector<int64_t>{0});
    for (const Node& node : nodes_) {
      if (node.is_target) static_cast<void>(example[node.from_batch]);  // throws if it is missing
    }
  }
  return trainer().evaluate(feed, metrics_of(instance_));
}

torch::Tensor Model::predict(const data::Feed& feed) {
  if (outputs_.empty()) fail(ErrorKind::InvalidArgument, "the model has no outputs to predict");
  if (feed.size() == 0) fail(ErrorKind::InvalidArgument, "the feed has no examples to predict");
  const torch::Tensor all = trainer().predict(feed);
  return all.narrow(1, 0, columns_of(instance_->shapes, outputs_.size())).contiguous();
}

// Returns the column names: "pred", or "pred 1", "pred 2" if the output has several columns.
std::vector<std::string> Model::columns() const {
  std::vector<std::string> names;
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const int64_t width = columns_of(instance_->shapes[i]);
    for (int64_t column = 1; column <= width; ++column)
      names.push_back(width == 1 ? outputs_[i].name : fmt::format("{} {}", outputs_[i].name, column));
  }
  return names;
}

void Model::predict(const data::Feed& feed, const std::string& path) {
  if (!trainer().group().is_chief()) return;
  const torch::Tensor rows = predict(feed);
  const bool csv = path.ends_with(".csv");
  const char* const separator = csv ? "," : "\t";
  std::string text = "ID";
  for (const std::string& name : columns()) text += separator + cell(name, csv);
  text += '\n';
  for (int64_t row = 0; row < rows.size(0); ++row) {
    text += cell(feed.id(row), csv);
    const float* numbers = rows.data_ptr<float>() + row * rows.size(1);
    for (int64_t i = 0; i < rows.size(1); ++i) text += fmt::format("{}{}", separator, numbers[i]);
    text += '\n';
  }
  replace_file(path, text);
}

}  // namespace tutti
