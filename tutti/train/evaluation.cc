#include "tutti/train/evaluation.h"

#include <algorithm>
#include <chrono>
#include <deque>

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/check.h"
#include "tutti/base/deadline.h"
#include "tutti/base/json.h"
#include "tutti/base/live_line.h"
#include "tutti/comm/gather_all.h"
#include "tutti/data/batch_queue.h"
#include "tutti/metrics/metrics.h"
#include "tutti/params/random_scope.h"
#include "tutti/train/evaluation_hook.h"
#include "tutti/train/replica.h"
#include "tutti/train/trainer.h"
#include "tutti/train/training_run.h"

// The parts of TrainingRun and Trainer that evaluate and predict.
namespace tutti {
namespace {

constexpr const char* kMeanLoss = "loss";

bool has_loss(const metrics::List& list) {
  return std::any_of(list.begin(), list.end(),
                     [](const auto& metric) { return metric->name() == kMeanLoss; });
}

// Returns the replica's model, with functions that run it in evaluation mode and in its precision, and whose
// errors name the examples.
Trainable evaluated(Replica& replica) {
  Trainable model = replica.model();
  model.loss_predicts = evaluates_by_loss(model);
  if (model.loss) model.loss = [&replica](const Batch& batch) { return replica.evaluate_loss(batch); };
  if (model.predict) model.predict = [&replica](const Batch& batch) { return replica.predict(batch); };
  return model;
}

// Makes one forward pass if the loss function returns its predictions (evaluates_by_loss()), or if only one
// of the two functions is needed, and else two passes. Sets *loss, unless it is null, and returns the
// predictions, if they are needed.
torch::Tensor forward(const Trainable& model, const Batch& batch, torch::Tensor* loss, bool needs_predictions,
                      PassAdvice& advice) {
  const bool by_loss = evaluates_by_loss(model);
  torch::Tensor prediction;
  if (loss != nullptr) {
    LossOutput output = model.loss(batch);
    *loss = std::move(output.loss);
    if (by_loss) prediction = std::move(output.prediction);
  }
  if (!needs_predictions) return {};
  if (!prediction.defined()) {
    if (!model.predict) fail_no_predictions();
    if (loss != nullptr) advice.two_passes(!by_loss);
    prediction = model.predict(batch);
  } else if (model.predict) {
    advice.compare(prediction, [&] { return model.predict(batch); });
  }
  const bool is_rounded = prediction.defined() && prediction.scalar_type() == torch::kBFloat16;
  return is_rounded ? prediction.to(torch::kFloat32) : prediction;
}

// Returns the values of the chief on all workers.
std::map<std::string, double> values_of_chief(comm::Communicator& comm,
                                              const std::map<std::string, double>& own) {
  if (comm.world() == 1) return own;
  std::vector<uint8_t> told;  // in CBOR, which keeps the bits, also of NaN
  if (comm.rank() == 0) told = Json::to_cbor(Json(own));
  const auto all = gather_all(comm, std::string(told.begin(), told.end()), "the values of an evaluation");
  return Json::from_cbor(all[0]).get<std::map<std::string, double>>();
}

// Copies the buffers of nets, which a module may change also in evaluation mode, and gives them their values
// back at its end.
class BufferScope {
 public:
  explicit BufferScope(const std::vector<SessionPart>& parts) {
    for (const SessionPart& part : parts) {
      for (const auto& view : part.parameters.buffers()) {
        const torch::Tensor buffer = view.tensor.detach();
        buffers_.emplace_back(buffer, buffer.clone());
      }
    }
  }
  ~BufferScope() {
    const torch::NoGradGuard no_grad;
    for (const auto& [buffer, before] : buffers_) buffer.copy_(before);
  }
  BufferScope(const BufferScope&) = delete;
  BufferScope& operator=(const BufferScope&) = delete;

 private:
  std::vector<std::pair<torch::Tensor, torch::Tensor>> buffers_;
};

}  // namespace

void PassAdvice::two_passes(bool has_own_predict) {
  if (log_ == nullptr || std::exchange(has_advised_, true)) return;
  log_->info(
      "evaluations make two forward passes, one for the loss and one for the metrics; to make only one, {}",
      has_own_predict
          ? "let the loss function return {loss, prediction} with the predictions of Trainable::predict, and "
            "set Trainable::loss_predicts"
          : "let the loss function return {loss, prediction} (tutti::LossOutput)");
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

std::map<std::string, double> values_of(const metrics::List& list, const Log* log) {
  std::map<std::string, double> values;
  for (const auto& metric : list) {
    if (const auto value = metric->value())
      values[metric->name()] = *value;
    else if (log != nullptr)
      log->info("{} has no value: {}", metric->name(), metric->reason());
  }
  return values;
}

void TrainingRun::with_weights(const EvaluateOptions& options, const std::function<void()>& body) {
  MovingAverage* const average = training_.average;
  if (average == nullptr)
    body();
  else if (options.last_weights)
    average->without_average(body);  // a hook may have called this while it measures the average
  else
    average->with_average(body);
}

// Calls `body` for each batch with examples of this part of the lanes. Batches are counted step by step, and
// within a step lane by lane. A replica prepares them; if the workers have to fetch rows of sharded tables
// together, each makes as many fetches, some of which are empty.
void TrainingRun::for_each_batch(const data::Feed& feed, const EvaluateOptions& options,
                                 data::SamplerOptions how, int part, int parts, Replica* replica,
                                 embedding::Tables* fetched, const std::function<void(const Batch&)>& body) {
  if (options.batch < 1)
    tutti::fail(ErrorKind::InvalidArgument,
                "an evaluation in batches of {} examples; .batch must be 1 or more", options.batch);
  if (options.steps < 0)
    tutti::fail(ErrorKind::InvalidArgument, "an evaluation of {} batches; .steps must be 0 or more",
                options.steps);
  how.order = data::Order::Sequential;
  how.batch = options.batch;
  const data::Sampler sampler(feed.size(), how);
  const int64_t all = sampler.steps_per_epoch() * how.lanes;
  const int64_t batches = options.steps == 0 ? all : std::min(all, options.steps);
  const int64_t steps = (batches + how.lanes - 1) / how.lanes;
  const LaneRange own = lanes_of(part, parts, how.lanes);
  const torch::Device device = training_.parameters.device();
  data::BatchQueue queue(feed, sampler,
                         {.end_step = steps,
                          .first_lane = own.begin,
                          .end_lane = own.end,
                          .device = device,
                          .timeout = milliseconds_of(context_.config().data.timeout),
                          .timeline = context_.timeline()});
  embedding::Tables* const tables = fetched != nullptr && !fetched->are_direct() ? fetched : nullptr;
  int64_t fetches_left =
      tables != nullptr && !tables->can_read_alone() ? steps * lanes_of(0, parts, how.lanes).size() : 0;
  Meter meter(session_.line(), "evaluation");
  for (int64_t step = 0; step < steps; ++step) {
    meter.at(step, steps);
    for (int64_t lane = own.begin; lane < own.end; ++lane) {
      const auto read = queue.next();
      TUTTI_CHECK(read.has_value(), "the feed ended before batch {} of step {}", lane, step);
      if (step * how.lanes + lane >= batches || read->size() == 0) continue;
      const Batch batch = replica != nullptr ? replica->prepare(*read) : read->to(device);
      if (tables == nullptr) {
        body(batch);
        continue;
      }
      tables->fetch(std::span(&batch, 1));
      --fetches_left;
      tables->begin_lane(0);
      body(batch);
      tables->end_lane();
    }
  }
  for (; fetches_left > 0; --fetches_left) tables->fetch({});
}

// The batches depend on the lanes only if each lane has its own examples, and never on the number of workers,
// so metrics have the same bits on any number.
metrics::List TrainingRun::evaluate(const data::Feed& feed, const metrics::List& list,
                                    const EvaluateOptions& options, const Trainable* other) {
  metrics::require_distinct_names(list);
  Replica* const replica = other == nullptr ? replica_ : nullptr;
  // Only the model of the Trainer has rows that have to be fetched.
  embedding::Tables* const tables = replica != nullptr || replica_ == nullptr ? &tables_ : nullptr;
  if (other == nullptr && replica == nullptr)
    tutti::fail(ErrorKind::InvalidArgument,
                "an evaluation of a feed in a Loop, which does not know how its nets predict: set "
                "Evaluation::model, or let a function measure them (Evaluation::measure)");
  if (tables != nullptr && options.here) require_rows_here(options);
  const Trainable model = replica != nullptr ? evaluated(*replica) : *other;
  // The mean of the loss function is the last metric.
  metrics::List all = list;
  const auto batch_loss = std::make_shared<torch::Tensor>();
  const bool counts_loss = options.loss && model.loss && !has_loss(list);
  if (counts_loss)
    all.push_back(metrics::mean(kMeanLoss, [batch_loss](const torch::Tensor&, const Batch&) {
      return batch_loss->to(torch::kDouble);
    }));
  for (const auto& metric : all) metric->reset();

  const torch::Device device = training_.parameters.device();
  const Precision precision = parse_precision(context_.config().compute.precision);
  const auto count = [&](const Batch& batch) {
    const torch::Tensor prediction = [&] {
      const PrecisionScope scope(device, precision);
      return forward(model, batch, counts_loss ? batch_loss.get() : nullptr, !list.empty(), pass_advice_);
    }();
    for (const auto& metric : all) metric->update(prediction, batch);
  };
  const StrategyFacts& facts = strategy_.facts();
  const int part = options.here ? 0 : facts.evaluation_part;
  const int parts = options.here ? 1 : facts.evaluation_parts;
  const auto count_part = [&] {
    if (part < 0) return;
    const int64_t lanes = session_.lanes();
    const bool is_dealt = !feed.ranges(lanes).empty();
    const RandomScope random(device);
    const torch::NoGradGuard no_grad;
    const EvaluationScope mode(*model.module);
    for_each_batch(
        feed, options,
        {.lanes = is_dealt ? lanes : std::max<int64_t>(lanes, parts), .ranges = feed.ranges(lanes)}, part,
        parts, replica, tables, count);
  };
  or_abandon("evaluate", [&] { with_weights(options, count_part); });
  strategy_.settle();
  name_not_covered();
  if (!options.here) merge(all);
  return all;
}

void TrainingRun::require_rows_here(const EvaluateOptions& options) {
  if (tables_.empty()) return;
  with_weights(options, [&] {
    if (tables_.can_read_alone()) return;
    tutti::fail(
        ErrorKind::InvalidArgument,
        "{} cannot evaluate alone, since it cannot read the {} of sharded embeddings that other workers "
        "have: evaluate on all workers",
        context_.task().short_name(),
        tables_.values() == embedding::RowValues::Average ? "averaged rows" : "rows");
  });
}

// If the chief evaluates alone, as with servers, the other workers may be at another step, or lost, so it
// does not wait for them; workers of a master make no steps.
std::optional<std::map<std::string, double>> TrainingRun::evaluate(const Evaluation& evaluation) {
  const SpanScope span(context_.timeline(), Activity::Evaluate, "evaluation", training_.step);
  const StrategyFacts& facts = strategy_.facts();
  if (facts.evaluation_part < 0) return std::nullopt;
  const BufferScope buffers(training_.parts);
  if (evaluation.feed) {
    const EvaluateOptions options{
        .batch = evaluation.batch, .steps = evaluation.steps, .here = facts.evaluation_parts == 1};
    const auto counted = evaluate(*evaluation.feed, evaluation.metrics, options,
                                  evaluation.model ? &*evaluation.model : nullptr);
    return values_of(counted, training_.writes() ? &context_.log() : nullptr);
  }
  std::map<std::string, double> values;
  {
    const RandomScope random(training_.parameters.device());
    std::deque<EvaluationScope> modes;
    if (training_.module != nullptr) modes.emplace_back(*training_.module);
    for (const auto& net : evaluation.nets) modes.emplace_back(*net);
    const torch::NoGradGuard no_grad;
    training_.with_average([&] { values = evaluation.measure(); });
  }
  name_not_covered();
  return facts.evaluation_parts > 1 ? values_of_chief(*strategy_.group().connected(), values) : values;
}

torch::Tensor TrainingRun::predict(const data::Feed& feed, const EvaluateOptions& options) {
  std::vector<torch::Tensor> rows;
  const auto predict_all = [&]() -> Json {
    rows.clear();
    with_weights(options, [&] {
      for_each_batch(feed, options, {}, 0, 1, replica_, &tables_,
                     [&](const Batch& batch) { rows.push_back(replica_->predict(batch).cpu()); });
    });
    return {};
  };
  bool is_alone = false;
  with_weights(options, [&] { is_alone = tables_.can_read_alone(); });
  is_alone ? predict_all() : with_all(predict_all);
  return rows.empty() ? torch::Tensor() : torch::cat(rows);
}

// --- The part of Trainer that evaluates.

EvaluateOptions Trainer::ready_to_evaluate(const EvaluateOptions& options) {
  if (options.here && !started_ && !strategy_->is_alone()) {
    fail(ErrorKind::InvalidArgument,
         "{} cannot evaluate alone before the first fit(), in which all workers start the run: evaluate "
         "later, or on all workers",
         context_.task().short_name());
  }
  start_once();
  // In a hook each worker evaluates for itself if the workers do not evaluate together.
  EvaluateOptions ready = options;
  if (fitting_ && strategy_->facts().evaluation_parts == 1) ready.here = true;
  return ready;
}

std::map<std::string, double> Trainer::measure(const data::Feed& feed, const metrics::List& list,
                                               const EvaluateOptions& options) {
  const EvaluateOptions ready = ready_to_evaluate(options);
  return run_.values_of_all(ready.here, [&] {
    const bool says = run_.training().writes() || options.here;
    return values_of(run_.evaluate(feed, list, ready), says ? &context_.log() : nullptr);
  });
}

std::vector<store::NamedTensor> Trainer::average() {
  const MovingAverage* const average = run_.training().average;
  return average != nullptr ? average->tensors() : std::vector<store::NamedTensor>();
}

std::map<std::string, double> Trainer::evaluate(const data::Feed& feed, const metrics::List& list,
                                                const EvaluateOptions& options) {
  const SpanScope span(context_.timeline(), Activity::Evaluate, "evaluate");
  const EvaluateOptions ready = ready_to_evaluate(options);
  return run_.values_of_all(ready.here, [&] { return evaluate_now(feed, list, ready); });
}

// Tells the values before the other workers go on: if the chief is lost meanwhile, the next one tells them.
std::map<std::string, double> Trainer::evaluate_now(const data::Feed& feed, const metrics::List& list,
                                                    const EvaluateOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  const metrics::List all = run_.evaluate(feed, list, options);
  store::EventWriter* events = run_.session().events();
  std::map<std::string, double> values;
  std::string text;
  for (const auto& metric : all) {
    const auto value = metric->value();
    run_.report().metrics[metric->name()] = value;
    text += fmt::format("  {} {}", metric->name(),
                        value ? fmt::format("{:.4f}", *value) : fmt::format("none ({})", metric->reason()));
    if (!value) continue;
    values[metric->name()] = *value;
    if (events != nullptr) events->scalar("test_" + metric->name(), run_.progress().step, *value);
  }
  if (events != nullptr) write_curves(*events, "test_", run_.progress().step, all);
  if (events != nullptr) events->flush();
  if (run_.training().writes() || options.here)
    context_.log().info(
        "evaluated {}{} in {:.1f} s:{}",
        options.steps == 0 ? fmt::format("{} examples", feed.size())
                           : fmt::format("up to {} batches", options.steps),
        run_.training().average != nullptr && !options.last_weights ? " with the moving average" : "",
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), text);
  // Without a fit, as after one by L-BFGS, nothing else is known of the run yet.
  if (run_.report().strategy.empty())
    run_.write_report();
  else
    write_report();
  return values;
}

torch::Tensor Trainer::predict(const data::Feed& feed, const EvaluateOptions& options) {
  start_once();
  return run_.predict(feed, options);
}

}  // namespace tutti
