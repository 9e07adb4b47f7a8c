#include <algorithm>
#include <chrono>

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/deadline.h"
#include "tutti/metrics/metrics.h"
#include "tutti/params/random_scope.h"
#include "tutti/train/trainer.h"

// The part of Trainer that evaluates and predicts.
namespace tutti {
namespace {

constexpr const char* kMeanLoss = "loss";  // the name of the mean of the loss function among the metrics

}  // namespace

void Trainer::for_each_batch(const data::Feed& feed, const data::Sampler& sampler, const LaneRange& lanes,
                             const std::function<void(const Batch&)>& body) {
  data::BatchQueue queue(feed, sampler,
                         {.end_step = sampler.steps_per_epoch(),
                          .first_lane = lanes.begin,
                          .end_lane = lanes.end,
                          .device = replica().options().device,
                          .timeout = milliseconds_of(context_.config().data.timeout),
                          .timeline = context_.timeline()});
  while (auto next = queue.next()) {
    if (next->size() > 0) body(replica().prepare(*next));
  }
}

// Adds the mean of the loss function, unless the model has none or the list has a metric of that name.
metrics::List Trainer::with_loss(metrics::List list, const EvaluateOptions& options) {
  Replica& model = replica();
  const bool has_loss =
      std::any_of(list.begin(), list.end(), [](const auto& metric) { return metric->name() == kMeanLoss; });
  if (options.loss && model.has_loss() && !has_loss)
    list.push_back(metrics::mean(kMeanLoss, [&model](const torch::Tensor&, const Batch& batch) {
      return model.evaluate_loss(batch);
    }));
  return list;
}

// Evaluates batch by batch, in the order of the feed, and returns the metrics with the counts of all workers.
// The batches depend on the lanes only if each lane has its own examples, and never on the number of workers,
// so metrics have the same bits on any number.
metrics::List Trainer::count(const data::Feed& feed, const metrics::List& list,
                             const EvaluateOptions& options) {
  metrics::require_distinct_names(list);
  if (options.here && !started_ && !strategy_->is_alone()) {
    fail(ErrorKind::InvalidArgument,
         "{} cannot evaluate alone before the first fit(), in which all workers start the run: evaluate "
         "later, or on all workers",
         context_.task().short_name());
  }
  start_once();
  metrics::List all = with_loss(list, options);
  for (const auto& metric : all) metric->reset();
  const auto count_part = [&] {
    const StrategyFacts& facts = strategy_->facts();
    const int part = options.here ? 0 : facts.evaluation_part;
    const int parts = options.here ? 1 : facts.evaluation_parts;
    if (part < 0) return;
    const int64_t own_lanes = engine_.session().lanes();
    const bool is_dealt = !feed.ranges(own_lanes).empty();
    const int64_t lanes = is_dealt ? own_lanes : std::max<int64_t>(own_lanes, parts);
    const data::Sampler sampler(feed.size(), {.order = data::Order::Sequential,
                                              .lanes = lanes,
                                              .batch = options.batch,
                                              .ranges = feed.ranges(lanes)});
    const RandomScope random(replica().options().device);
    for_each_batch(feed, sampler, lanes_of(part, parts, lanes), [&](const Batch& batch) {
      // The loss alone needs no predictions, which some models do not have.
      const torch::Tensor prediction = list.empty() ? torch::Tensor() : replica().predict(batch);
      for (const auto& metric : all) metric->update(prediction, batch);
    });
  };
  or_abandon("evaluate", [&] { with_weights(options, count_part); });
  strategy_->settle();
  if (!options.here) {
    for (const auto& metric : all) strategy_->merge(*metric);
  }
  return all;
}

std::map<std::string, double> Trainer::measure(const data::Feed& feed, const metrics::List& list,
                                               const EvaluateOptions& options) {
  std::map<std::string, double> values;
  for (const auto& metric : count(feed, list, options)) {
    if (const auto value = metric->value()) values[metric->name()] = *value;
  }
  return values;
}

void Trainer::with_weights(const EvaluateOptions& options, const std::function<void()>& body) {
  if (average_ && !options.last_weights)
    average_->with_average(body);
  else
    body();
}

// Validates the model as FitOptions::validate says.
class Trainer::ValidationHook final : public Hook {
 public:
  explicit ValidationHook(Trainer& trainer) : trainer_(trainer) {}

  void begin(Training& training) override { last_ = training.step; }

  void after_step(Training& training, const StepResult&) override {
    const ValidateOptions& options = trainer_.validate_;
    int64_t every = options.every_steps;
    if (every == 0) every = std::max<int64_t>(1, options.every_epochs) * training.steps_per_epoch;
    if (options.feed && training.due(every)) validate(training);
  }

  void end(Training& training) override {
    if (trainer_.validate_.feed && last_ != training.step && !training.interrupted) validate(training);
  }

 private:
  // If the workers are connected, all of them count their share; else the chief counts alone.
  void validate(const Training& training) {
    last_ = training.step;
    const ValidateOptions& options = trainer_.validate_;
    const bool together = trainer_.strategy_->facts().evaluation_parts > 1;
    if (!together && !training.group.is_chief()) return;
    training.report_validation(
        trainer_.measure(*options.feed, options.metrics, {.batch = options.batch, .here = !together}));
  }

  Trainer& trainer_;
  int64_t last_ = 0;  // the step of the last validation, or the first step
};

std::unique_ptr<Hook> Trainer::validation_hook() { return std::make_unique<ValidationHook>(*this); }

std::vector<store::NamedTensor> Trainer::average() {
  return average_ ? average_->tensors() : std::vector<store::NamedTensor>();
}

std::map<std::string, double> Trainer::evaluate(const data::Feed& feed, const metrics::List& list,
                                                const EvaluateOptions& options) {
  const SpanScope span(context_.timeline(), Activity::Evaluate, "evaluate");
  const auto begin = std::chrono::steady_clock::now();
  const metrics::List all = count(feed, list, options);
  store::EventWriter* events = engine_.session().events();
  std::map<std::string, double> values;
  std::string text;
  for (const auto& metric : all) {
    const auto value = metric->value();
    engine_.report().metrics[metric->name()] = value;
    text += fmt::format("  {} {}", metric->name(), value ? fmt::format("{:.4f}", *value) : "none");
    if (!value) continue;
    values[metric->name()] = *value;
    if (events != nullptr) events->scalar("test_" + metric->name(), engine_.progress().step, *value);
  }
  if (events != nullptr) events->flush();
  if (strategy_->group().is_chief() || options.here)
    context_.log().info("evaluated {} examples in {:.1f} s:{}", feed.size(),
                        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(),
                        text);
  // Without a fit, as after one by L-BFGS, nothing else is known of the run yet.
  if (engine_.report().strategy.empty())
    engine_.write_report();
  else
    write_report();
  return values;
}

torch::Tensor Trainer::predict(const data::Feed& feed, const EvaluateOptions& options) {
  start_once();
  std::vector<torch::Tensor> rows;
  const data::Sampler sampler(feed.size(), {.order = data::Order::Sequential, .batch = options.batch});
  with_weights(options, [&] {
    for_each_batch(feed, sampler, {0, 1},
                   [&](const Batch& batch) { rows.push_back(replica().predict(batch).cpu()); });
  });
  return rows.empty() ? torch::Tensor() : torch::cat(rows);
}

}  // namespace tutti
