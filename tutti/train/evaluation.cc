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
  if (batch < 1)
    fail(ErrorKind::InvalidArgument, "an evaluation in batches of {} examples; .batch must be 1 or more",
         batch);
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

metrics::List with_mean_loss(metrics::List list, const std::function<torch::Tensor(const Batch&)>& loss) {
  constexpr const char* kName = "loss";
  const bool has_loss =
      std::any_of(list.begin(), list.end(), [](const auto& metric) { return metric->name() == kName; });
  if (!has_loss)
    list.push_back(metrics::mean(
        kName, [loss](const torch::Tensor&, const Batch& batch) { return loss(batch).to(torch::kDouble); }));
  return list;
}

// Calls `body` for each batch of a part of the sampler's lanes. If all workers have to fetch rows of sharded
// tables together, each makes as many fetches, some of which are empty.
void Trainer::for_each_batch(const data::Feed& feed, const data::Sampler& sampler, int part, int parts,
                             const std::function<void(const Batch&)>& body) {
  embedding::Tables& tables = replica().tables();
  const auto lanes = [&](int of_part) { return lanes_of(of_part, parts, sampler.options().lanes); };
  const bool fetches = !tables.are_direct();
  int64_t fetches_left =
      fetches && !tables.can_read_alone() ? sampler.steps_per_epoch() * lanes(0).size() : 0;
  tutti::for_each_batch(context_, feed, sampler, lanes(part), replica().options().device,
                        [&](const Batch& read) {
                          const Batch batch = replica().prepare(read);
                          if (!fetches) return body(batch);
                          tables.fetch(std::span(&batch, 1));
                          --fetches_left;
                          tables.begin_lane(0);
                          body(batch);
                          tables.end_lane();
                        });
  for (; fetches_left > 0; --fetches_left) tables.fetch({});
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
  // During a fit with servers the other workers may be at another step, or lost, so none waits for them.
  const bool alone = options.here || (fitting_ && strategy_->facts().keeps_parameters_elsewhere);
  if (options.here && !replica().tables().can_read_alone())
    fail(ErrorKind::InvalidArgument,
         "{} cannot evaluate alone, since it cannot read the rows of sharded embeddings that other workers "
         "have: evaluate on all workers",
         context_.task().short_name());
  metrics::List all = list;
  if (options.loss && replica().has_loss())
    all = with_mean_loss(list, [this](const Batch& batch) { return replica().evaluate_loss(batch); });
  for (const auto& metric : all) metric->reset();
  const auto count_part = [&] {
    const StrategyFacts& facts = strategy_->facts();
    const int part = alone ? 0 : facts.evaluation_part;
    const int parts = alone ? 1 : facts.evaluation_parts;
    if (part < 0) return;
    const data::Sampler sampler = evaluation_sampler(feed, engine_.session().lanes(), parts, options.batch);
    const RandomScope random(replica().options().device);
    for_each_batch(feed, sampler, part, parts, [&](const Batch& batch) {
      // The loss alone needs no predictions, which some models do not have.
      const torch::Tensor prediction = list.empty() ? torch::Tensor() : replica().predict(batch);
      for (const auto& metric : all) metric->update(prediction, batch);
    });
  };
  or_abandon("evaluate", [&] { with_weights(options, count_part); });
  strategy_->settle();
  if (!alone) strategy_->merge(all);
  return all;
}

std::map<std::string, double> Trainer::measure(const data::Feed& feed, const metrics::List& list,
                                               const EvaluateOptions& options) {
  std::map<std::string, double> values;
  for (const auto& metric : count(feed, list, options)) {
    if (const auto value = metric->value())
      values[metric->name()] = *value;
    else if (strategy_->group().is_chief() || options.here)
      context_.log().info("{} has no value: {}", metric->name(), metric->reason());
  }
  return values;
}

void Trainer::with_weights(const EvaluateOptions& options, const std::function<void()>& body) {
  if (options.last_weights)
    body();
  else
    engine_.training().with_average(body);
}

// Validates the model as FitOptions::validate says. If the workers are connected, all of them count their
// share; else the chief counts alone.
std::optional<std::map<std::string, double>> Trainer::validate(const ValidateOptions& options) {
  const bool together = strategy_->facts().evaluation_parts > 1;
  if (!together && !group().is_chief()) return std::nullopt;
  return measure(*options.feed, options.metrics, {.batch = options.batch, .here = !together});
}

std::vector<store::NamedTensor> Trainer::average() {
  const MovingAverage* const average = engine_.training().average;
  return average != nullptr ? average->tensors() : std::vector<store::NamedTensor>();
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
    text += fmt::format("  {} {}", metric->name(),
                        value ? fmt::format("{:.4f}", *value) : fmt::format("none ({})", metric->reason()));
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
    for_each_batch(feed, sampler, 0, 1,
                   [&](const Batch& batch) { rows.push_back(replica().predict(batch).cpu()); });
  });
  return rows.empty() ? torch::Tensor() : torch::cat(rows);
}

}  // namespace tutti
