#include "tutti/train/evaluation.h"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/check.h"
#include "tutti/base/deadline.h"
#include "tutti/base/json.h"
#include "tutti/comm/gather_all.h"
#include "tutti/metrics/metrics.h"
#include "tutti/params/random_scope.h"
#include "tutti/train/evaluation_hook.h"
#include "tutti/train/replica.h"
#include "tutti/train/trainer.h"

// Evaluates feeds; the part of Trainer that evaluates and predicts.
namespace tutti {
namespace {

constexpr const char* kMeanLoss = "loss";

bool has_loss(const metrics::List& list) {
  return std::any_of(list.begin(), list.end(),
                     [](const auto& metric) { return metric->name() == kMeanLoss; });
}

}  // namespace

EvaluationBatches evaluation_batches(const data::Feed& feed, int64_t lanes_of_run, int parts,
                                     const MeasureOptions& options) {
  if (options.batch < 1)
    fail(ErrorKind::InvalidArgument, "an evaluation in batches of {} examples; .batch must be 1 or more",
         options.batch);
  if (options.steps < 0)
    fail(ErrorKind::InvalidArgument, "an evaluation of {} batches; .steps must be 0 or more", options.steps);
  const bool is_dealt = !feed.ranges(lanes_of_run).empty();
  const int64_t lanes = is_dealt ? lanes_of_run : std::max<int64_t>(lanes_of_run, parts);
  data::Sampler sampler(feed.size(), {.order = data::Order::Sequential,
                                      .lanes = lanes,
                                      .batch = options.batch,
                                      .ranges = feed.ranges(lanes)});
  const int64_t all = sampler.steps_per_epoch() * lanes;
  return {std::move(sampler), options.steps == 0 ? all : std::min(all, options.steps)};
}

int64_t EvaluationBatches::end_step() const {
  const int64_t lanes = sampler.options().lanes;
  return (most + lanes - 1) / lanes;
}

LaneRange EvaluationBatches::lanes_of(int part, int parts) const {
  return tutti::lanes_of(part, parts, sampler.options().lanes);
}

void for_each_batch(const Context& context, const data::Feed& feed, const EvaluationBatches& batches,
                    const LaneRange& lanes, torch::Device device,
                    const std::function<void(const Batch&)>& body) {
  data::BatchQueue queue(feed, batches.sampler,
                         {.end_step = batches.end_step(),
                          .first_lane = lanes.begin,
                          .end_lane = lanes.end,
                          .device = device,
                          .timeout = milliseconds_of(context.config().data.timeout),
                          .timeline = context.timeline()});
  for (int64_t step = 0; step < batches.end_step(); ++step) {
    for (int64_t lane = lanes.begin; lane < lanes.end; ++lane) {
      const auto batch = queue.next();
      TUTTI_CHECK(batch.has_value(), "the feed ended before batch {} of step {}", lane, step);
      const bool counts = step * batches.sampler.options().lanes + lane < batches.most;
      if (counts && batch->size() > 0) body(*batch);
    }
  }
}

void PassAdvice::two_passes(std::string_view how_to_make_one) {
  if (log_ == nullptr || std::exchange(has_advised_, true)) return;
  log_->info(
      "evaluations make two forward passes, one for the loss and one for the metrics; to make only one, {}",
      how_to_make_one);
}

void PassAdvice::loss_lacks_predictions() {
  two_passes("let the loss function return {loss, prediction} (tutti::LossOutput)");
}

void PassAdvice::predict_is_own() {
  two_passes(
      "let the loss function return {loss, prediction} with the predictions of Trainable::predict, and set "
      "Trainable::loss_predicts");
}

void PassAdvice::compare(const torch::Tensor& of_loss, const std::function<torch::Tensor()>& predict) {
  if (log_ == nullptr || std::exchange(has_compared_, true)) return;
  torch::Tensor other;
  try {
    other = predict();
  } catch (const std::exception&) {
    return;  // the evaluation does not need it
  }
  const auto flat = [](const torch::Tensor& tensor) { return tensor.flatten().to(torch::kDouble); };
  constexpr double kRelative = 1e-3;
  constexpr double kAbsolute = 1e-4;
  if (of_loss.numel() == other.numel() &&
      flat(of_loss).allclose(flat(other), kRelative, kAbsolute, /*equal_nan=*/true))
    return;
  log_->warning(
      "the loss function returns other predictions, {}, than forward() or Trainable::predict, {}. "
      "Evaluations "
      "use the former, predict() and exports the latter: let the loss function return the same, or none",
      describe(of_loss), describe(other));
}

BatchCounter::BatchCounter(metrics::List list, Functions functions, PassAdvice& advice)
    : needs_predictions_(!list.empty()),
      functions_(std::move(functions)),
      advice_(advice),
      batch_loss_(std::make_shared<torch::Tensor>()),
      all_(std::move(list)) {
  if (has_loss(all_)) functions_.loss = {};
  if (!functions_.loss) return;
  all_.push_back(metrics::mean(kMeanLoss, [batch_loss = batch_loss_](const torch::Tensor&, const Batch&) {
    return batch_loss->to(torch::kDouble);
  }));
}

void BatchCounter::count(const Batch& batch) {
  torch::Tensor prediction = pass(batch);
  if (prediction.defined() && prediction.scalar_type() == torch::kBFloat16)
    prediction = prediction.to(torch::kFloat32);
  for (const auto& metric : all_) metric->update(prediction, batch);
}

// Sets *batch_loss_, and returns the predictions if the metrics need any.
torch::Tensor BatchCounter::pass(const Batch& batch) {
  torch::Tensor prediction;
  if (functions_.loss) {
    LossOutput output = functions_.loss(batch);
    *batch_loss_ = std::move(output.loss);
    if (functions_.by_loss) prediction = std::move(output.prediction);
  }
  if (!needs_predictions_) return {};
  const auto predict = [&] { return functions_.predict(batch); };
  if (prediction.defined()) {
    if (functions_.predict) advice_.compare(prediction, predict);
    return prediction;
  }
  if (!functions_.predict) fail_no_predictions();
  if (functions_.loss && functions_.by_loss) advice_.loss_lacks_predictions();
  if (functions_.loss && !functions_.by_loss) advice_.predict_is_own();
  return predict();
}

metrics::List count_part(const Context& context, const Trainable& model, const data::Feed& feed,
                         const metrics::List& list, const MeasureOptions& options, const EvaluationPart& part,
                         PassAdvice& advice) {
  const EvaluationBatches batches = evaluation_batches(feed, part.lanes_of_run, part.parts, options);
  BatchCounter counter(list, {model.loss, model.predict, evaluates_by_loss(model)}, advice);
  const RandomScope random(part.device);
  const torch::NoGradGuard no_grad;
  const EvaluationScope evaluation(*model.module);
  const PrecisionScope precision(part.device, parse_precision(context.config().compute.precision));
  for_each_batch(context, feed, batches, batches.lanes_of(part.part, part.parts), part.device,
                 [&](const Batch& read) { counter.count(read.to(part.device)); });
  return counter.all();
}

std::map<std::string, double> values_of(const Context& context, const metrics::List& list, Say say) {
  std::map<std::string, double> values;
  for (const auto& metric : list) {
    if (const auto value = metric->value())
      values[metric->name()] = *value;
    else if (say == Say::WhyNoValue)
      context.log().info("{} has no value: {}", metric->name(), metric->reason());
  }
  return values;
}

std::map<std::string, double> values_of_chief(comm::Communicator& comm,
                                              const std::map<std::string, double>& own) {
  if (comm.world() == 1) return own;
  std::vector<uint8_t> told;  // in CBOR, which keeps the bits, also of NaN
  if (comm.rank() == 0) told = Json::to_cbor(Json(own));
  const auto all = gather_all(comm, std::string(told.begin(), told.end()), "the values of an evaluation");
  return Json::from_cbor(all[0]).get<std::map<std::string, double>>();
}

void BufferScope::add(const Parameters& parameters) {
  for (const auto& view : parameters.buffers()) {
    const torch::Tensor buffer = view.tensor.detach();
    buffers_.emplace_back(buffer, buffer.clone());
  }
}

BufferScope::~BufferScope() {
  const torch::NoGradGuard no_grad;
  for (const auto& [buffer, before] : buffers_) buffer.copy_(before);
}

// Calls `body` for each batch of a part. If all workers have to fetch rows of sharded tables together, each
// makes as many fetches, some of which are empty.
void Trainer::for_each_batch(const data::Feed& feed, const EvaluationBatches& batches, int part, int parts,
                             const std::function<void(const Batch&)>& body) {
  embedding::Tables& tables = replica().tables();
  const bool fetches = !tables.are_direct();
  int64_t fetches_left =
      fetches && !tables.can_read_alone() ? batches.end_step() * batches.lanes_of(0, parts).size() : 0;
  tutti::for_each_batch(context_, feed, batches, batches.lanes_of(part, parts), replica().options().device,
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
  // During a fit with servers the other workers may be at another step, or lost, so none waits for them;
  // those of a master make no steps of their own.
  const bool alone = options.here || (fitting_ && strategy_->facts().evaluation_parts == 1);
  if (options.here && !replica().tables().empty()) {
    with_weights(options, [&] {
      if (replica().tables().can_read_alone()) return;
      fail(ErrorKind::InvalidArgument,
           "{} cannot evaluate alone, since it cannot read the {} of sharded embeddings that other workers "
           "have: evaluate on all workers",
           context_.task().short_name(),
           replica().tables().values() == embedding::RowValues::Average ? "averaged rows" : "rows");
    });
  }
  const Trainable& model = replica().model();
  BatchCounter::Functions functions;
  functions.by_loss = evaluates_by_loss(model);
  if (options.loss && model.loss)
    functions.loss = [this](const Batch& batch) { return replica().evaluate_loss(batch); };
  if (model.predict) functions.predict = [this](const Batch& batch) { return replica().predict(batch); };
  BatchCounter counter(list, std::move(functions), engine_.pass_advice());
  for (const auto& metric : counter.all()) metric->reset();
  const auto count_part = [&] {
    const StrategyFacts& facts = strategy_->facts();
    const int part = alone ? 0 : facts.evaluation_part;
    const int parts = alone ? 1 : facts.evaluation_parts;
    if (part < 0) return;
    const EvaluationBatches batches = evaluation_batches(feed, engine_.session().lanes(), parts,
                                                         {.batch = options.batch, .steps = options.steps});
    const RandomScope random(replica().options().device);
    for_each_batch(feed, batches, part, parts, [&](const Batch& batch) { counter.count(batch); });
  };
  or_abandon("evaluate", [&] { with_weights(options, count_part); });
  strategy_->settle();
  if (!alone) strategy_->merge(counter.all());
  return counter.all();
}

std::map<std::string, double> Trainer::measure(const data::Feed& feed, const metrics::List& list,
                                               const EvaluateOptions& options) {
  const bool says = engine_.training().writes() || options.here;
  return values_of(context_, count(feed, list, options), says ? Say::WhyNoValue : Say::Nothing);
}

void Trainer::with_weights(const EvaluateOptions& options, const std::function<void()>& body) {
  MovingAverage* const average = engine_.training().average;
  if (average == nullptr)
    body();
  else if (options.last_weights)
    average->without_average(body);  // a hook may have called this while it measures the average
  else
    average->with_average(body);
}

// Counts the metrics of an evaluation during a fit. If the workers are connected, all of them count their
// share; else the chief counts alone.
std::optional<metrics::List> Trainer::count_for_hook(const EvaluationRequest& request) {
  const StrategyFacts& facts = strategy_->facts();
  if (facts.evaluation_part < 0) return std::nullopt;
  return count(
      request.feed, request.metrics,
      {.batch = request.options.batch, .steps = request.options.steps, .here = facts.evaluation_parts == 1});
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
  if (events != nullptr) write_curves(*events, "test_", engine_.progress().step, all);
  if (events != nullptr) events->flush();
  if (engine_.training().writes() || options.here)
    context_.log().info(
        "evaluated {}{} in {:.1f} s:{}",
        options.steps == 0 ? fmt::format("{} examples", feed.size())
                           : fmt::format("up to {} batches", options.steps),
        engine_.training().average != nullptr && !options.last_weights ? " with the moving average" : "",
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), text);
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
  data::Sampler sampler(feed.size(), {.order = data::Order::Sequential, .batch = options.batch});
  const int64_t all = sampler.steps_per_epoch();
  const EvaluationBatches batches{std::move(sampler),
                                  options.steps == 0 ? all : std::min(all, options.steps)};
  with_weights(options, [&] {
    for_each_batch(feed, batches, 0, 1,
                   [&](const Batch& batch) { rows.push_back(replica().predict(batch).cpu()); });
  });
  return rows.empty() ? torch::Tensor() : torch::cat(rows);
}

}  // namespace tutti
