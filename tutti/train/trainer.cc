#include "tutti/train/trainer.h"

#include <algorithm>

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/deadline.h"
#include "tutti/base/interrupted.h"
#include "tutti/data/feed.h"
#include "tutti/params/agreement.h"
#include "tutti/params/reducer.h"
#include "tutti/train/export/exporter.h"

namespace tutti {
namespace {

[[noreturn]] void fail_too_few(const data::Sampler& sampler) {
  const data::SamplerOptions& options = sampler.options();
  if (options.ranges.empty())
    fail(ErrorKind::InvalidArgument,
         "the {} examples do not fill one step of {} lanes with {} examples each: use a smaller --batch, or "
         "--no-drop-remainder",
         sampler.size(), options.lanes, options.batch);
  const auto shortest = std::min_element(options.ranges.begin(), options.ranges.end(),
                                         [](const auto& a, const auto& b) { return a.size() < b.size(); });
  fail(ErrorKind::InvalidArgument,
       "lane {} has {} examples of its own, which do not fill a step of {}: use a smaller --batch, "
       "--no-drop-remainder, or another partition",
       shortest - options.ranges.begin(), shortest->size(), options.batch);
}

// Returns the options with the length of --steps and --epochs, unless they contain one.
FitOptions with_length(FitOptions options, const RunConfig::Training& config) {
  if (options.steps < 0 || options.epochs < 0)
    fail(ErrorKind::InvalidArgument,
         "fit() for {} steps, {} epochs: .steps and .epochs must be 0 or more (0: as the flags say)",
         options.steps, options.epochs);
  if (options.steps > 0 || options.epochs > 0) return options;
  options.steps = config.steps;
  options.epochs = config.epochs;
  return options;
}

}  // namespace

Trainer::Trainer(const Context& context, Trainable model, const OptimizerOptions& optimizer,
                 const TrainerOptions& options)
    : context_(context),
      options_(options),
      strategy_(make_strategy(context_, model, optimizer,
                              {.group = options.group, .clip_norm = options.clip_norm})),
      engine_(context_, *strategy_, {{"", replica().parameters(), replica().optimizer()}},
              {.name = options.name}, replica().tables(), &replica()),
      device_clock_(context.device()) {
  require_tables_to_leave_out(options.exports.leave_out, embedding::tables_in(replica().module()));
  engine_.keep_average({options.average});
  engine_.schedule({options.learning_rate});
  if (!replica().tables().empty()) engine_.training().rows = [this] { return strategy_->rows(); };
  if (strategy_->group().is_chief()) warn_of_sparse_tables(context_, replica().parameters());
  engine_.session().describe(facts());
}

History Trainer::fit(const data::Feed& feed, const FitOptions& options) {
  if (!context_.config().exports.dir.empty()) export_instead_of(feed, options);
  struct Scope {
    bool& flag;
    explicit Scope(bool& raised) : flag(raised) { flag = true; }
    ~Scope() { flag = false; }
  };
  const Scope fitting(fitting_);
  return fit_once(feed, with_length(options, context_.config().training));
}

History Trainer::fit_once(const data::Feed& feed, const FitOptions& options) {
  const RunConfig::Training& config = context_.config().training;
  engine_.require_nothing_stopped();
  engine_.or_abandon("start", [&] { engine_.session().lock(); });
  start_once();
  engine_.validate(options.validate);
  if (context_.identity().is_evaluator) {
    engine_.follow(next_fit_++);
    return engine_.history();
  }
  strategy_->require_same_fit([&] { return plan_of_fit(feed, options); });
  if (feed.size() == 0) fail(ErrorKind::InvalidArgument, "the feed has no examples to train on");
  engine_.report().skipped_examples = feed.left_out().examples;
  const Progress& progress = engine_.progress();
  const int64_t lanes = engine_.session().lanes();
  const int64_t this_fit = next_fit_++;
  if (this_fit > progress.fit && engine_.stops_before_fit()) return {};
  const size_t this_feed = feeds_.number_of(feed, feed.ranges(lanes));
  if (this_fit > progress.fit)
    begin_fit(this_fit, this_feed, options);
  else
    follow_feed(this_feed);
  if (this_fit < progress.fit) return {};  // finished before the run was resumed
  engine_.or_abandon("continue", [&] { describe_data(feed); });
  const data::Sampler sampler(feed.size(), {.order = feed.order(),
                                            .seed = config.seed,
                                            .lanes = lanes,
                                            .batch = config.batch,
                                            .drop_remainder = config.drop_remainder,
                                            .ranges = feed.ranges(lanes)});
  if (sampler.steps_per_epoch() == 0) fail_too_few(sampler);
  if (progress.stopped && strategy_->group().is_chief())
    context_.log().info("a hook has already stopped this fit after step {}; it will not be continued",
                        progress.step);
  try {
    const int64_t per_epoch = sampler.steps_per_epoch() * strategy_->facts().steps_per_batch;
    const int64_t steps =
        options.steps > 0 ? options.steps : std::max<int64_t>(1, options.epochs) * per_epoch;
    engine_.begin({.end_step = progress.stopped ? progress.step : progress.fit_begin + steps,
                   .steps_per_epoch = per_epoch,
                   .first_epoch_at = feed_begin(),
                   .ends_the_run = progress.fit == 0 && options.steps == config.steps &&
                                   options.epochs == config.epochs});
    require_data_in_every_lane(sampler);
    run(feed, sampler);
    return engine_.history();
  } catch (const Interrupted&) {
    throw;
  } catch (const std::exception& error) {
    engine_.fail(error);
    engine_.abandon(fmt::format("gave up at step {}", engine_.training().step), error);
    throw;
  }
}

void Trainer::run(const data::Feed& feed, const data::Sampler& sampler) {
  for (;;) {
    try {
      run_steps(feed, sampler);
      return;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::PeerLost || !strategy_->facts().restarts) throw;
      start_again(error);
    }
  }
}

void Trainer::run_steps(const data::Feed& feed, const data::Sampler& sampler) {
  const Training& training = engine_.training();
  engine_.require_parameters_as_they_were("outside the steps of a fit");
  engine_.begin_steps();
  const int64_t first = training.step - feed_begin();
  const StepRange steps =
      strategy_->begin_steps(first, std::max(first, engine_.last_step() - feed_begin()), feed_begin());
  data::BatchQueue queue(feed, sampler,
                         {.first_step = steps.begin,
                          .end_step = steps.end,
                          .first_lane = strategy_->facts().lanes.begin,
                          .end_lane = strategy_->facts().lanes.end,
                          .device = replica().options().device,
                          .timeout = milliseconds_of(context_.config().data.timeout),
                          .timeline = context_.timeline(),
                          .step_in_timeline = feed_begin()});
  Wishes reasons = engine_.reasons_to_end();
  while (training.step < engine_.last_step() && !reasons.end_training()) {
    one_step(queue);
    reasons = engine_.reasons_to_end();
  }
  engine_.report().device_seconds = device_clock_.seconds();
  engine_.end(reasons);
}

void Trainer::one_step(data::BatchQueue& queue) {
  const Training& training = engine_.training();
  const SpanScope span(context_.timeline(), Activity::Step, "step", training.step);
  engine_.before_step();
  device_clock_.begin_step();
  const StepResult result = strategy_->step(training.step, training.wishes, queue,
                                            [&](int64_t lane, const Batch& batch, const LossOutput& output) {
                                              engine_.after_lane(lane, batch, output);
                                            });
  device_clock_.end_step();
  engine_.after_step(result);
}

void Trainer::start_once() {
  if (!started_) engine_.or_abandon("start", [&] { start(); });
}

void Trainer::start() {
  engine_.start(plan());
  started_ = true;
}

// The facts that have to be the same on all workers.
std::vector<std::string> Trainer::plan() {
  std::vector<std::string> plan = plan_of(context_, replica().parameters(), replica().optimizer().options());
  plan.push_back(fmt::format("clip_norm {}", options_.clip_norm));
  plan.push_back(fmt::format("moving average {}", options_.average));
  for (std::string& line : replica().tables().plan()) plan.push_back(std::move(line));
  plan.push_back(context_.config().checkpoints.logdir.empty() ? "no logdir" : "a logdir");
  return plan;
}

RunFacts Trainer::facts() {
  return facts_of(context_, reducer_options(context_.config()), options_.clip_norm, strategy_->group().world,
                  replica().parameters());
}

// The facts about a fit that have to be the same on all workers.
std::vector<std::string> Trainer::plan_of_fit(const data::Feed& feed, const FitOptions& options) const {
  std::vector<std::string> plan = {
      fmt::format("fit {}", next_fit_),
      options.from_start ? "from the start of the feed" : "from where the feed was left",
      fmt::format("{} steps, {} epochs", options.steps, options.epochs)};
  data::Fingerprint lines = data::order_of(feed, engine_.session().lanes());
  // If each lane has its own examples, a worker need not have the examples of other workers' lanes.
  if (feed.ranges(engine_.session().lanes()).empty()) {
    for (auto& line : data::columns_of(feed, engine_.session().lanes())) lines.push_back(std::move(line));
  }
  for (const auto& [name, text] : lines) plan.push_back(fmt::format("data: {} {}", name, text));
  for (std::string& line : engine_.evaluation_plan()) plan.push_back(std::move(line));
  for (std::string& line : engine_.schedule_plan()) plan.push_back(std::move(line));
  return plan;
}

// Describes the data for the checkpoints, and compares them with the data of the resumed run.
void Trainer::describe_data(const data::Feed& feed) {
  if (!strategy_->group().is_chief() || context_.config().checkpoints.logdir.empty()) return;
  Json data = Json::object();
  for (const auto& [name, text] : data::order_of(feed, engine_.session().lanes())) data[name] = text;
  for (const auto& [name, text] : data::columns_of(feed, engine_.session().lanes())) data[name] = text;
  engine_.session().describe_data(data, engine_.progress());
}

// Lanes without examples are skipped, but modules that work on all workers together do not support that.
// Checks this before the first step on every worker, and not only at the end of an epoch.
void Trainer::require_data_in_every_lane(const data::Sampler& sampler) const {
  const Training& training = engine_.training();
  const int64_t per_epoch = sampler.steps_per_epoch();
  const int64_t first = (training.step - feed_begin()) % per_epoch;
  const int64_t last = std::min(first + training.end_step - training.step, per_epoch) - 1;  // of this epoch
  if (!strategy_->facts().needs_data_in_every_lane || last < first || sampler.fills_all_lanes(last)) return;
  fail(ErrorKind::InvalidArgument,
       "SyncBatchNorm needs examples in every lane, but the last step of an epoch does not fill {} lanes of "
       "{} examples ({} examples in all). Use --drop-remainder instead of --no-drop-remainder to skip "
       "that step",
       engine_.session().lanes(), sampler.options().batch, sampler.size());
}

void Trainer::begin_fit(int64_t fit, size_t feed, const FitOptions& options) {
  Progress& progress = engine_.progress();
  follow_feed(feed_);  // the feed of the previous fit
  progress.feeds[feed_] += progress.step - progress.fit_begin;
  progress.fit = fit;
  progress.fit_begin = progress.step;
  progress.end_step = 0;
  progress.stopped = false;
  progress.stop_reason.reset();
  follow_feed(feed);
  if (options.from_start) progress.feeds[feed_] = 0;
  strategy_->set_progress(progress);
}

// A resumed run may know of fewer feeds than the program has used so far.
void Trainer::follow_feed(size_t feed) {
  feed_ = feed;
  std::vector<int64_t>& feeds = engine_.progress().feeds;
  feeds.resize(std::max(feeds.size(), feed + 1));
}

// Returns the step of the run at which the feed would have begun if all its steps had been made in one piece.
int64_t Trainer::feed_begin() const { return engine_.progress().fit_begin - engine_.progress().feeds[feed_]; }

// Another task was lost, and some steps may be lost with it.
void Trainer::start_again(const Error& error) {
  const Progress before = engine_.progress();
  engine_.start_again(error, plan());
  if (engine_.progress().fit < before.fit) begin_again(before);
  follow_feed(feed_);
}

// Continues the current fit if the newest checkpoint belongs to an earlier one, which the program has left.
void Trainer::begin_again(const Progress& before) {
  Progress& progress = engine_.progress();
  if (progress.step != before.fit_begin) {
    fail(ErrorKind::PeerLost,
         "the run was restored to step {}, which belongs to an earlier fit() of the program: start the "
         "program again",
         progress.step);
  }
  progress.fit = before.fit;
  progress.fit_begin = before.fit_begin;
  progress.feeds = before.feeds;
  progress.stopped = before.stopped;
  progress.stop_reason = before.stop_reason;
  strategy_->set_progress(progress);
}

}  // namespace tutti
