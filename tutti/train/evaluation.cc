#include "tutti/train/evaluation.h"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/deadline.h"
#include "tutti/metrics/metrics.h"
#include "tutti/params/random_scope.h"
#include "tutti/train/trainer.h"

// Evaluates feeds; the part of Trainer that evaluates and predicts.
namespace tutti {

data::Sampler evaluation_sampler(const data::Feed& feed, int64_t lanes_of_run, int parts, int64_t batch) {
  const bool is_dealt = !feed.ranges(lanes_of_run).empty();
  const int64_t lanes = is_dealt ? lanes_of_run : std::max<int64_t>(lanes_of_run, parts);
  return data::Sampler(
      feed.size(),
      {.order = data::Order::Sequential, .lanes = lanes, .batch = batch, .ranges = feed.ranges(lanes)});
}

void for_each_batch(const Context& context, const data::Feed& feed, const data::Sampler& sampler,
                    const LaneRange& lanes, torch::Device device,
                    const std::function<void(const Batch&)>& body) {
  data::BatchQueue queue(feed, sampler,
                         {.end_step = sampler.steps_per_epoch(),
                          .first_lane = lanes.begin,
                          .end_lane = lanes.end,
                          .device = device,
                          .timeout = milliseconds_of(context.config().data.timeout),
                          .timeline = context.timeline()});
  while (auto next = queue.next()) {
    if (next->size() > 0) body(*next);
  }
}

void Trainer::for_each_batch(const data::Feed& feed, const data::Sampler& sampler, const LaneRange& lanes,
                             const std::function<void(const Batch&)>& body) {
  tutti::for_each_batch(context_, feed, sampler, lanes, replica().options().device,
                        [&](const Batch& batch) { body(replica().prepare(batch)); });
}

std::map<std::string, double> Trainer::measure(const data::Feed& feed, const metrics::List& list,
                                               const EvaluateOptions& options) {
  return measure_by([this](const Batch& batch) { return replica().predict(batch); }, feed, list, options);
}

std::map<std::string, double> Trainer::measure_by(const Predict& predict, const data::Feed& feed,
                                                  const metrics::List& list, const EvaluateOptions& options) {
  metrics::require_distinct_names(list);
  if (options.here && !started_ && !strategy_->is_alone()) {
    fail(ErrorKind::InvalidArgument,
         "{} cannot evaluate alone before the first fit(), in which all workers start the run: evaluate "
         "later, or on all workers",
         context_.task().short_name());
  }
  start_once();
  for (const auto& metric : list) metric->reset();
  const auto count = [&] {
    const StrategyFacts& facts = strategy_->facts();
    const int part = options.here ? 0 : facts.evaluation_part;
    const int parts = options.here ? 1 : facts.evaluation_parts;
    if (part < 0) return;
    const data::Sampler sampler = evaluation_sampler(feed, engine_.session().lanes(), parts, options.batch);
    const RandomScope random(replica().options().device);
    for_each_batch(feed, sampler, lanes_of(part, parts, sampler.options().lanes), [&](const Batch& batch) {
      const torch::Tensor prediction = predict(batch);
      for (const auto& metric : list) metric->update(prediction, batch);
    });
  };
  or_abandon("evaluate", [&] { with_weights(options, count); });
  std::map<std::string, double> values;
  strategy_->settle();
  for (const auto& metric : list) {
    if (!options.here) strategy_->merge(*metric);
    if (const auto value = metric->value()) values[metric->name()] = *value;
  }
  return values;
}

void Trainer::with_weights(const EvaluateOptions& options, const std::function<void()>& body) {
  MovingAverage* const average = engine_.training().average;
  if (average != nullptr && !options.last_weights)
    average->with_average(body);
  else
    body();
}

// Validates the model as FitOptions::validate says. If the workers are connected, all of them count their
// share; else the chief counts alone.
std::optional<std::map<std::string, double>> Trainer::validate(const ValidateOptions& options) {
  const bool together = strategy_->facts().evaluation_parts > 1;
  if (!together && !group().is_chief()) return std::nullopt;
  metrics::List list = options.metrics;
  const bool has_loss =
      std::any_of(list.begin(), list.end(), [](const auto& metric) { return metric->name() == "loss"; });
  if (!has_loss)
    list.push_back(metrics::mean(
        "loss", [this](const torch::Tensor&, const Batch& batch) { return replica().evaluate_loss(batch); }));
  // The loss alone needs no predictions, which some models do not have.
  const auto predict = [&](const Batch& batch) {
    return options.metrics.empty() ? torch::Tensor() : replica().predict(batch);
  };
  return measure_by(predict, *options.feed, list, {.batch = options.batch, .here = !together});
}

std::vector<store::NamedTensor> Trainer::average() {
  const MovingAverage* const average = engine_.training().average;
  return average != nullptr ? average->tensors() : std::vector<store::NamedTensor>();
}

std::map<std::string, double> Trainer::evaluate(const data::Feed& feed, const metrics::List& list,
                                                const EvaluateOptions& options) {
  const SpanScope span(context_.timeline(), Activity::Evaluate, "evaluate");
  const auto begin = std::chrono::steady_clock::now();
  std::map<std::string, double> values = measure(feed, list, options);
  store::EventWriter* events = engine_.session().events();
  std::string text;
  for (const auto& metric : list) {
    const auto value = metric->value();
    engine_.report().metrics[metric->name()] = value;
    text += fmt::format("  {} {}", metric->name(), value ? fmt::format("{:.4f}", *value) : "none");
    if (value && events != nullptr) events->scalar("test_" + metric->name(), engine_.progress().step, *value);
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
