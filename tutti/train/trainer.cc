#include "tutti/train/trainer.h"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/crc32c.h"
#include "tutti/base/deadline.h"
#include "tutti/base/interrupted.h"
#include "tutti/cluster/roles.h"
#include "tutti/comm/connect.h"
#include "tutti/data/fingerprint.h"
#include "tutti/metrics/metrics.h"
#include "tutti/params/agreement.h"
#include "tutti/params/reducer.h"
#include "tutti/train/hooks/nan_guard.h"
#include "tutti/train/hooks/of_flags.h"
#include "tutti/train/stop_signals.h"
#include "tutti/train/stopping.h"
#include "tutti/train/teams/by_communicator.h"
#include "tutti/train/teams/by_servers.h"
#include "tutti/train/teams/driven.h"
#include "tutti/train/teams/driving.h"
#include "tutti/train/together.h"

namespace tutti {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::unique_ptr<Team> make_team(const Context& context, const Trainable& model,
                                const TrainerOptions& options) {
  context.require_worker();
  const std::string& strategy = context.flags().strategy;
  if (strategy == "in-graph") {
    if (context.is_chief()) return std::make_unique<Driving>(context, model, options.clip_norm);
    return std::make_unique<Driven>(context);
  }
  const bool by_servers =
      strategy.empty() ? has_servers(context.cluster()) : strategy == "ps-sync" || strategy == "ps-async";
  if (by_servers && !options.communicator) return std::make_unique<ByServers>(context, options.clip_norm);
  return std::make_unique<ByCommunicator>(
      context, options.communicator ? options.communicator : comm::connect(context), options.clip_norm);
}

ReplicaOptions replica_options(const Context& context, const Trainable& model, Team& team) {
  ReplicaOptions options{.precision = parse_precision(context.flags().precision),
                         .layout = layout_of(context.flags().layout, *model.module),
                         .seed = context.flags().seed,
                         .device = context.device(),
                         .check_loss = context.flags().nan_guard ? hooks::nan_guard() : LossCheck(),
                         .timeline = context.timeline()};
  team.place(options);
  return options;
}

// Returns a checksum of the values and of the floating buffers, on any device.
uint32_t checksum_of(const Parameters& parameters) {
  uint32_t sum = 0;
  const auto add = [&sum](const torch::Tensor& vector) {
    const torch::Tensor values = vector.detach().to(torch::kCPU);
    sum = crc32c({static_cast<const std::byte*>(values.data_ptr()), values.nbytes()}, sum);
  };
  for (const Stretch& block : parameters.blocks()) add(block.values);
  for (const torch::Tensor& buffers : parameters.buffer_vectors()) add(buffers);
  return sum;
}

}  // namespace

Trainer::Trainer(const Context& context, Trainable model, const OptimizerOptions& optimizer,
                 const TrainerOptions& options)
    : context_(context),
      options_(options),
      team_(make_team(context, model, options)),
      replica_(model, optimizer, replica_options(context, model, *team_)),
      session_(context, {{"", replica_.parameters(), replica_.optimizer()}}, {.name = options.name}),
      device_clock_(context.device()) {
  or_abandon("start", [&] { hooks_ = hooks::of_flags(context.flags()); });
  if (options.communicator) require_whole_group(context, *options.communicator);
  warn_of_sparse_tables(context, replica_.parameters());
  session_.describe(facts());
}

Trainer::~Trainer() = default;

void Trainer::add_hook(std::unique_ptr<Hook> hook) {
  hooks::add(hooks_, context_.flags(), std::move(hook));
  has_own_hooks_ = true;
}

template <class Call>
void Trainer::for_each_hook(Call call) {
  const SpanScope span(context_.timeline(), Activity::Step, "hooks", progress_.step);
  for (const auto& hook : hooks_) call(*hook);
}

// If this worker cannot continue, tells the others so that they do not wait for it.
template <class Body>
void Trainer::or_abandon(const char* what, Body body) {
  try {
    body();
  } catch (const std::exception& error) {
    team_->abandon(fmt::format("{} could not {}: {}", context_.task().short_name(), what, error.what()));
    throw;
  }
}

void Trainer::start_once() {
  if (!strategy_) or_abandon("start", [&] { start(); });
}

void Trainer::start() {
  const SpanScope span(context_.timeline(), Activity::Step, "start");
  Team::Start start = team_->start(session_, replica_, plan());
  progress_ = start.progress;
  strategy_ = std::move(start.strategy);
  report_.lost_steps += start.lost_steps;
  remember_parameters();
}

// The facts that have to be the same on all workers.
std::vector<std::string> Trainer::plan() const {
  std::vector<std::string> plan = plan_of(context_, replica_.parameters(), replica_.optimizer().options());
  plan.push_back(fmt::format("clip_norm {}", options_.clip_norm));
  plan.push_back(context_.flags().logdir.empty() ? "no logdir" : "a logdir");
  return plan;
}

RunFacts Trainer::facts() const {
  RunFacts facts = facts_of(context_, reducer_options(context_.flags()), options_.clip_norm, team_->world(),
                            replica_.parameters());
  facts.settings["layout"] =
      replica_.options().layout == Layout::ChannelsLast ? "channels-last" : "contiguous";
  return facts;
}

FitOptions Trainer::how_far(const FitOptions& options) const {
  if (options.steps > 0 || options.epochs > 0) return options;
  return {.steps = context_.flags().steps, .epochs = context_.flags().epochs};
}

// The facts about a fit that have to be the same on all workers.
std::vector<std::string> Trainer::plan_of_fit(const data::Feed& feed, const FitOptions& options) const {
  std::vector<std::string> plan = {
      fmt::format("fit {}", next_fit_),
      options.from_start ? "from the start of the feed" : "from where the feed was left",
      fmt::format("{} steps, {} epochs", how_far(options).steps, how_far(options).epochs)};
  data::Fingerprint lines = data::order_of(feed, session_.lanes());
  // If each lane has its own examples, a worker need not have the examples of other workers' lanes.
  if (feed.ranges(session_.lanes()).empty()) {
    for (auto& line : data::columns_of(feed, session_.lanes())) lines.push_back(std::move(line));
  }
  for (const auto& [name, text] : lines) plan.push_back(fmt::format("data: {} {}", name, text));
  if (const Schedule& rate = options_.learning_rate) {
    for (const int64_t step : {0, 100, 1000, 10000})
      plan.push_back(fmt::format("learning rate {} at step {}", rate(step), step));
  }
  return plan;
}

// Describes the data for the checkpoints, and compares them with the data of the resumed run.
void Trainer::describe_data(const data::Feed& feed) {
  if (!team_->is_chief() || context_.flags().logdir.empty()) return;
  Json data = Json::object();
  for (const auto& [name, text] : data::order_of(feed, session_.lanes())) data[name] = text;
  for (const auto& [name, text] : data::columns_of(feed, session_.lanes())) data[name] = text;
  session_.describe_data(data, progress_);
}

int64_t Trainer::end_step(const data::Sampler& sampler, const FitOptions& options) const {
  const FitOptions far = how_far(options);
  return progress_.fit_begin +
         (far.steps > 0 ? far.steps : std::max<int64_t>(1, far.epochs) * sampler.steps_per_epoch());
}

Training Trainer::make_training(int64_t end_step) {
  Training training{
      .context = context_, .parameters = replica_.parameters(), .optimizer = replica_.optimizer()};
  training.first_step = training.step = training.last_step = progress_.step;
  training.in_step = strategy_->in_step();
  training.went_on = session_.went_on();
  training.end_step = end_step;
  training.events = session_.events();
  training.stop_reason = progress_.stop_reason;
  if (team_->share_of_evaluation().parts > 1)
    training.merge = [this](metrics::Metric& metric) { team_->merge(metric); };
  return training;
}

// Lanes without examples are skipped, but modules that work on all workers together do not support that.
// Checks this before the first step on every worker, and not only at the end of an epoch.
void Trainer::require_data_in_every_lane(const Training& training, const data::Sampler& sampler) const {
  const int64_t per_epoch = sampler.steps_per_epoch();
  const int64_t first = (training.step - feed_begin()) % per_epoch;
  const int64_t last = std::min(first + training.end_step - training.step, per_epoch) - 1;  // of this epoch
  if (!team_->needs_data_in_every_lane() || last < first || sampler.fills_all_lanes(last)) return;
  fail(ErrorKind::InvalidArgument,
       "SyncBatchNorm needs examples in every lane, but the last step of an epoch does not fill {} lanes of "
       "{} examples ({} examples in all). Use --drop-remainder instead of --no-drop-remainder to skip "
       "that step",
       session_.lanes(), sampler.options().batch, sampler.size());
}

std::chrono::milliseconds Trainer::feed_timeout() const {
  return milliseconds_of(context_.flags().feed_timeout);
}

void Trainer::save(const Training& training) {
  const SpanScope span(context_.timeline(), Activity::Save, "checkpoint", progress_.step);
  strategy_->settle();
  if (has_own_hooks_) require_parameters_as_they_were("by a hook");
  progress_.stop_reason = training.stop_reason;
  note_loss();
  team_->save(session_, replica_, progress_);
  remember_parameters();  // saving may have pulled newer parameters from the servers
}

void Trainer::note_loss() {
  if (last_step_.has_loss()) progress_.loss = last_step_.loss();
}

void Trainer::fail_too_few(const data::Sampler& sampler) const {
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

// Returns the step of the run at which the feed would have begun if all its steps had been made in one piece.
int64_t Trainer::feed_begin() const { return progress_.fit_begin - progress_.feeds[feed_]; }

// A resumed run may know of fewer feeds than the program has used so far.
void Trainer::follow_feed(size_t feed) {
  feed_ = feed;
  progress_.feeds.resize(std::max(progress_.feeds.size(), feed + 1));
}

void Trainer::begin_fit(int64_t fit, size_t feed, const FitOptions& options) {
  follow_feed(feed_);  // the feed of the previous fit
  progress_.feeds[feed_] += progress_.step - progress_.fit_begin;
  progress_.fit = fit;
  progress_.fit_begin = progress_.step;
  progress_.stopped = false;
  progress_.stop_reason.reset();
  follow_feed(feed);
  if (options.from_start) progress_.feeds[feed_] = 0;
  team_->set_progress(progress_);
}

void Trainer::fit(const data::Feed& feed, const FitOptions& options) {
  or_abandon("start", [&] {
    session_.claim();
    if (team_->is_chief()) session_.lock();
  });
  start_once();
  team_->require_same_fit([&] { return plan_of_fit(feed, options); });
  if (feed.size() == 0) fail(ErrorKind::InvalidArgument, "the feed has no examples to train on");
  report_.skipped_examples = feed.source().left_out().examples;
  const int64_t this_fit = next_fit_++;
  const size_t this_feed = feeds_.number_of(feed, feed.ranges(session_.lanes()));
  if (this_fit > progress_.fit)
    begin_fit(this_fit, this_feed, options);
  else
    follow_feed(this_feed);
  if (this_fit < progress_.fit) return;  // finished before the run was resumed
  or_abandon("continue", [&] { describe_data(feed); });
  const data::Sampler sampler(feed.size(), {.order = feed.order(),
                                            .seed = context_.flags().seed,
                                            .lanes = session_.lanes(),
                                            .batch = context_.flags().batch,
                                            .drop_remainder = context_.flags().drop_remainder,
                                            .ranges = feed.ranges(session_.lanes())});
  if (sampler.steps_per_epoch() == 0) fail_too_few(sampler);
  if (progress_.stopped && context_.is_chief())
    context_.log().info("a hook has already stopped this fit after step {}; it will not be continued",
                        progress_.step);
  Training training = make_training(progress_.stopped ? progress_.step : end_step(sampler, options));
  training.save_checkpoint = [&] { save(training); };
  require_data_in_every_lane(training, sampler);
  const auto begin = Clock::now();
  const int64_t examples_before = progress_.examples;
  try {
    for_each_hook([&](Hook& hook) { hook.begin(training); });
    for (bool done = false; !done;) {
      try {
        run_steps(training, feed, sampler);
        done = true;
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::PeerLost || !team_->can_start_again()) throw;
        start_again(training, error);
      }
    }
  } catch (const Interrupted&) {
    fill_report(seconds_since(begin), progress_.examples - examples_before);
    team_->write_timeline();  // all workers stop here
    throw;
  } catch (const std::exception& error) {
    for_each_hook([&](Hook& hook) { hook.on_error(training, error); });
    team_->abandon(
        fmt::format("{} gave up at step {}: {}", context_.task().short_name(), training.step, error.what()));
    throw;
  }
  fill_report(seconds_since(begin), progress_.examples - examples_before);
}

// Another task was lost, and some steps may be lost with it.
void Trainer::start_again(Training& training, const Error& error) {
  const Progress before = progress_;
  context_.log().warning("{}; waiting for the lost task to reconnect", error.what());
  try {
    strategy_->settle();
  } catch (const Error&) {
    // After one failure, others are expected.
  }
  start();
  training.step = training.last_step = progress_.step;
  training.went_on = session_.went_on();
  training.events = session_.events();
  training.stop_reason = progress_.stop_reason;
  if (progress_.stopped) training.end_step = progress_.step;
  if (progress_.fit < before.fit) begin_again(before);
  follow_feed(feed_);
}

// Continues the current fit if the newest checkpoint belongs to an earlier one, which the program has left.
void Trainer::begin_again(const Progress& before) {
  if (progress_.step != before.fit_begin) {
    fail(ErrorKind::PeerLost,
         "the run was restored to step {}, which belongs to an earlier fit() of the program: start the "
         "program again",
         progress_.step);
  }
  progress_.fit = before.fit;
  progress_.fit_begin = before.fit_begin;
  progress_.feeds = before.feeds;
  progress_.stopped = before.stopped;
  progress_.stop_reason = before.stop_reason;
  team_->set_progress(progress_);
}

void Trainer::run_steps(Training& training, const data::Feed& feed, const data::Sampler& sampler) {
  const StopSignals signals;
  require_parameters_as_they_were("outside the steps of a fit");
  for_each_hook([&](Hook& hook) { hook.after_start(training); });
  const StepRange steps = strategy_->data_steps(training.step - feed_begin(),
                                                std::max(training.step, training.end_step) - feed_begin());
  strategy_->ends_at(training.end_step);
  data::BatchQueue queue(feed, sampler,
                         {.first_step = steps.begin,
                          .end_step = steps.end,
                          .first_lane = strategy_->lanes().begin,
                          .end_lane = strategy_->lanes().end,
                          .device = replica_.options().device,
                          .timeout = feed_timeout(),
                          .timeline = context_.timeline(),
                          .step_in_timeline = feed_begin()});
  last_step_.wishes = {};
  // A worker that makes steps of its own stops by itself. All others stop after the step in which the request
  // reached every worker; only a worker without others reacts to a signal at once.
  const auto stops_by_itself = [&]() -> Wishes {
    const Wishes own = wish_to_stop(training, signals);
    if (!training.in_step) return own;
    return {.signal = team_->is_alone() ? own.signal : 0};
  };
  Wishes end = stops_by_itself();
  while (training.step < training.end_step && !end.end_training()) {
    one_step(training, queue, signals);
    end = training.in_step ? last_step_.wishes : Wishes{};
    if (!end.end_training()) end = stops_by_itself();
  }
  if (end.stop) progress_.stopped = true;
  if (has_own_hooks_) require_parameters_as_they_were("by a hook");
  team_->finish_fit(*strategy_, progress_);
  remember_parameters();
  training.step = progress_.step;
  for_each_hook([&](Hook& hook) { hook.end(training); });
  end_as_wished(training, end, signals);
}

void Trainer::remember_parameters() {
  if (team_->keeps_parameters_elsewhere()) checksum_ = checksum_of(replica_.parameters());
}

void Trainer::require_parameters_as_they_were(const char* since) const {
  if (!team_->keeps_parameters_elsewhere() || checksum_ == checksum_of(replica_.parameters())) return;
  fail(ErrorKind::InvalidArgument,
       "the parameters or buffers were changed {} (at step {}), but with --strategy {} the parameter servers "
       "hold them, so the change would be lost. Let the optimiser make such changes (for example "
       "weight_decay), keep values computed from the parameters, such as a moving average, in tensors "
       "outside the model until the training has ended, or use --strategy allreduce",
       since, progress_.step, strategy_->name());
}

void Trainer::one_step(Training& training, data::BatchQueue& queue, const StopSignals& signals) {
  const SpanScope span(context_.timeline(), Activity::Step, "step", training.step);
  if (options_.learning_rate) replica_.optimizer().set_learning_rate(options_.learning_rate(training.step));
  training.wishes = {};
  for_each_hook([&](Hook& hook) { hook.before_step(training); });
  if (training.in_step) training.wishes.add(wish_to_stop(training, signals));
  if (has_own_hooks_) require_parameters_as_they_were("by a hook");
  device_clock_.begin_step();
  const StepResult result = strategy_->step(
      training.step, training.wishes, queue, [&](int64_t lane, const Batch& batch, const LossOutput& output) {
        for_each_hook([&](Hook& hook) { hook.after_lane(training, lane, batch, output); });
      });
  device_clock_.end_step();
  if (has_own_hooks_) remember_parameters();
  progress_.step = training.step = result.step;
  last_step_.wishes = result.wishes;
  if (!result.made) return;
  // Set before a hook saves the step.
  progress_.stopped = training.in_step && result.wishes.stop;
  last_step_ = result;
  progress_.examples += result.examples;
  const std::optional<std::string> stop_reason = training.stop_reason;
  for_each_hook([&](Hook& hook) { hook.after_step(training, result); });
  if (training.in_step && training.stop_reason != stop_reason) {
    progress_.stop_reason = training.stop_reason;
    strategy_->settle();
    team_->set_progress(progress_);
  }
  training.last_step = training.step;
}

void Trainer::fill_report(double seconds, int64_t examples) {
  report_.strategy = strategy_->name();
  report_.reduce = strategy_->reduce();
  report_.world = team_->world();
  report_.seconds += seconds;
  report_.examples_per_second = seconds > 0 ? static_cast<double>(examples) / seconds : 0;
  note_loss();
  report_.device_seconds = device_clock_.seconds();
  session_.fill(report_, progress_);
  team_->fill(report_);
  session_.write(report_);
}

template <class Body>
void Trainer::for_each_batch(const data::Feed& feed, const data::Sampler& sampler, const LaneRange& lanes,
                             Body body) {
  data::BatchQueue queue(feed, sampler,
                         {.end_step = sampler.steps_per_epoch(),
                          .first_lane = lanes.begin,
                          .end_lane = lanes.end,
                          .device = replica_.options().device,
                          .timeout = feed_timeout(),
                          .timeline = context_.timeline()});
  while (auto next = queue.next()) {
    if (next->size() > 0) body(replica_.prepare(*next));
  }
}

// Evaluates batch by batch, in the order of the feed. The batches depend on the lanes only if each lane has
// its own examples, and never on the number of workers, so metrics have the same bits on any number.
std::map<std::string, double> Trainer::measure(const data::Feed& feed, const metrics::List& list,
                                               const EvaluateOptions& options) {
  metrics::require_distinct_names(list);
  if (options.here && !strategy_ && !team_->is_alone()) {
    fail(ErrorKind::InvalidArgument,
         "{} cannot evaluate alone before the first fit(), in which all workers start the run: evaluate "
         "later, or on all workers",
         context_.task().short_name());
  }
  start_once();
  for (const auto& metric : list) metric->reset();
  const auto count = [&] {
    const Team::Share share = options.here ? Team::Share{} : team_->share_of_evaluation();
    if (share.part < 0) return;
    const bool is_dealt = !feed.ranges(session_.lanes()).empty();
    const int64_t lanes = is_dealt ? session_.lanes() : std::max<int64_t>(session_.lanes(), share.parts);
    const data::Sampler sampler(feed.size(), {.order = data::Order::Sequential,
                                              .lanes = lanes,
                                              .batch = options.batch,
                                              .ranges = feed.ranges(lanes)});
    for_each_batch(feed, sampler, lanes_of(share.part, share.parts, lanes), [&](const Batch& batch) {
      const torch::Tensor prediction = replica_.predict(batch);
      for (const auto& metric : list) metric->update(prediction, batch);
    });
  };
  or_abandon("evaluate", count);
  std::map<std::string, double> values;
  strategy_->settle();
  for (const auto& metric : list) {
    if (!options.here) team_->merge(*metric);
    if (const auto value = metric->value()) values[metric->name()] = *value;
  }
  return values;
}

std::map<std::string, double> Trainer::evaluate(const data::Feed& feed, const metrics::List& list,
                                                const EvaluateOptions& options) {
  const SpanScope span(context_.timeline(), Activity::Evaluate, "evaluate");
  const auto begin = Clock::now();
  std::map<std::string, double> values = measure(feed, list, options);
  std::string text;
  for (const auto& metric : list) {
    const auto value = metric->value();
    report_.metrics[metric->name()] = value;
    text += fmt::format("  {} {}", metric->name(), value ? fmt::format("{:.4f}", *value) : "none");
    if (value && session_.events() != nullptr)
      session_.events()->scalar("test_" + metric->name(), progress_.step, *value);
  }
  if (session_.events() != nullptr) session_.events()->flush();
  if (context_.is_chief() || options.here)
    context_.log().info("evaluated {} examples in {:.1f} s:{}", feed.size(), seconds_since(begin), text);
  // Without a fit, as after one by L-BFGS, nothing else is known of the run yet.
  if (strategy_ && report_.strategy.empty()) {
    fill_report(0, 0);
  } else {
    session_.write(report_);
  }
  return values;
}

torch::Tensor Trainer::predict(const data::Feed& feed, const EvaluateOptions& options) {
  start_once();
  std::vector<torch::Tensor> rows;
  const data::Sampler sampler(feed.size(), {.order = data::Order::Sequential, .batch = options.batch});
  for_each_batch(feed, sampler, {0, 1},
                 [&](const Batch& batch) { rows.push_back(replica_.predict(batch).cpu()); });
  if (rows.empty()) return {};
  return torch::cat(rows);
}

}  // namespace tutti
