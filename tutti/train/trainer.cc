#include "tutti/train/trainer.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/data/feed.h"
#include "tutti/params/plan.h"
#include "tutti/step/bucket_sums.h"
#include "tutti/train/export/exporter.h"

namespace tutti {
namespace {

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
      run_(context_, *strategy_, {{"", replica().parameters(), replica().optimizer()}},
           {.name = options.name}, &replica()) {
  require_tables_to_leave_out(options.exports.leave_out, embedding::tables_in(replica().module()));
  run_.keep_average({options.average});
  run_.schedule({options.learning_rate});
  run_.session().describe(facts());
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
  run_.require_nothing_stopped();
  const auto passes_over = [&] {
    if (!run_.passes_over(next_fit_)) return false;
    feeds_.number_of(feed, feed.ranges(run_.session().lanes()));
    ++next_fit_;
    return true;
  };
  if (passes_over()) return {};
  const bool joins = strategy_->joins();
  run_.or_abandon("start", [&] { run_.session().lock(); });
  start_once();
  if (passes_over()) return {};  // they have ended it since
  run_.validate(options.validate);
  if (context_.identity().is_evaluator) {
    run_.follow(next_fit_++);
    return run_.history();
  }
  // The others have compared their plans when they began this fit, or a later one.
  const bool others_have_begun = joins || run_.has_joined_since(next_fit_);
  if (!strategy_->facts().chief_reads_all)
    run_.require_same_fit(others_have_begun, [&] { return plan_of_fit(feed, options); });
  if (feed.size() == 0) fail(ErrorKind::InvalidArgument, "the feed has no examples to train on");
  run_.report().skipped_examples = feed.left_out().examples;
  const Progress& progress = run_.progress();
  const int64_t lanes = run_.session().lanes();
  const int64_t this_fit = next_fit_++;
  if (this_fit > progress.fit && run_.stops_before_fit()) return {};
  const size_t this_feed = feeds_.number_of(feed, feed.ranges(lanes));
  if (this_fit > progress.fit)
    begin_fit(this_fit, this_feed, options);
  else
    follow_feed(this_feed);
  if (this_fit < progress.fit) return {};  // finished before the run was resumed
  run_.or_abandon("continue", [&] { describe_data(feed); });
  const data::Sampler sampler(feed.size(), {.order = feed.order(),
                                            .seed = config.seed,
                                            .lanes = lanes,
                                            .batch = config.batch,
                                            .drop_remainder = config.drop_remainder,
                                            .ranges = feed.ranges(lanes)});
  sampler.require_steps();
  run_.or_give_up([&] {
    const int64_t per_epoch = sampler.steps_per_epoch() * strategy_->facts().steps_per_batch;
    const int64_t steps =
        options.steps > 0 ? options.steps : std::max<int64_t>(1, options.epochs) * per_epoch;
    run_.begin({.end_step = progress.stopped ? progress.step : progress.fit_begin + steps,
                .steps_per_epoch = per_epoch,
                .first_epoch_at = feed_begin(),
                .ends_the_run =
                    progress.fit == 0 && options.steps == config.steps && options.epochs == config.epochs});
    require_data_in_every_lane(sampler);
    make_steps(feed, sampler);
  });
  return run_.history();
}

void Trainer::make_steps(const data::Feed& feed, const data::Sampler& sampler) {
  const StrategyFacts& facts = strategy_->facts();
  const Training& training = run_.training();
  std::optional<data::BatchQueue> queue;
  while (run_.next()) {
    if (const auto steps = run_.begun())
      queue.emplace(feed, sampler,
                    data::BatchQueueOptions{.first_step = steps->begin,
                                            .end_step = steps->end,
                                            .first_lane = facts.lanes.begin,
                                            .end_lane = facts.lanes.end,
                                            .device = replica().options().device,
                                            .timeout = milliseconds_of(context_.config().data.timeout),
                                            .timeline = context_.timeline(),
                                            .step_in_timeline = feed_begin()});
    run_.step([&] {
      return strategy_->step(training.step, training.wishes, *queue,
                             [&](int64_t lane, const Batch& batch, const LossOutput& output) {
                               run_.after_lane(lane, batch, output);
                             });
    });
  }
}

void Trainer::start_once() {
  if (started_) return;
  run_.or_abandon("start", [&] { run_.start(plan()); });
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
std::vector<std::string> Trainer::plan_of_fit(const data::Feed& feed, const FitOptions& options) {
  std::vector<std::string> plan = {
      fmt::format("fit {}", next_fit_),
      options.from_start ? "from the start of the feed" : "from where the feed was left",
      fmt::format("{} steps, {} epochs", options.steps, options.epochs)};
  data::Fingerprint lines = data::order_of(feed, run_.session().lanes());
  // If each lane has its own examples, a worker need not have the examples of other workers' lanes.
  if (feed.ranges(run_.session().lanes()).empty()) {
    for (auto& line : data::columns_of(feed, run_.session().lanes())) lines.push_back(std::move(line));
  }
  for (const auto& [name, text] : lines) plan.push_back(fmt::format("data: {} {}", name, text));
  for (std::string& line : run_.plan()) plan.push_back(std::move(line));
  return plan;
}

// Describes the data for the checkpoints, and compares them with the data of the resumed run.
void Trainer::describe_data(const data::Feed& feed) {
  const bool writes = strategy_->group().is_chief() || strategy_->facts().survives;  // now or later
  if (!writes || context_.config().checkpoints.logdir.empty()) return;
  Json data = Json::object();
  for (const auto& [name, text] : data::order_of(feed, run_.session().lanes())) data[name] = text;
  for (const auto& [name, text] : data::columns_of(feed, run_.session().lanes())) data[name] = text;
  run_.session().describe_data(data, run_.progress());
}

// Lanes without examples are skipped, but modules that work on all workers together do not support that.
// Checks this before the first step on every worker, and not only at the end of an epoch.
void Trainer::require_data_in_every_lane(const data::Sampler& sampler) const {
  const Training& training = run_.training();
  const int64_t per_epoch = sampler.steps_per_epoch();
  const int64_t first = (training.step - feed_begin()) % per_epoch;
  const int64_t last = std::min(first + training.end_step - training.step, per_epoch) - 1;  // of this epoch
  if (!strategy_->facts().needs_data_in_every_lane || last < first || sampler.fills_all_lanes(last)) return;
  fail(ErrorKind::InvalidArgument,
       "SyncBatchNorm needs examples in every lane, but the last step of an epoch does not fill {} lanes of "
       "{} examples ({} examples in all). Use --drop-remainder instead of --no-drop-remainder to skip "
       "that step",
       run_.session().lanes(), sampler.options().batch, sampler.size());
}

void Trainer::begin_fit(int64_t fit, size_t feed, const FitOptions& options) {
  Progress& progress = run_.progress();
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
  std::vector<int64_t>& feeds = run_.progress().feeds;
  feeds.resize(std::max(feeds.size(), feed + 1));
}

// Returns the step of the run at which the feed would have begun if all its steps had been made in one piece.
int64_t Trainer::feed_begin() const { return run_.progress().fit_begin - run_.progress().feeds[feed_]; }

}  // namespace tutti
