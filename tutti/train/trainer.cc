#include "tutti/train/trainer.h"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/interrupted.h"
#include "tutti/cluster/roles.h"
#include "tutti/comm/connect.h"
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

namespace tutti {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::unique_ptr<Team> make_team(const Context& context, const Trainable& model,
                                const TrainerOptions& options) {
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

}  // namespace

Trainer::Trainer(const Context& context, Trainable model, const OptimizerOptions& optimizer,
                 const TrainerOptions& options)
    : context_(context),
      options_(options),
      team_(make_team(context, model, options)),
      replica_(model, optimizer, replica_options(context, model, *team_)),
      session_(context, replica_.parameters(), replica_.optimizer()),
      hooks_(hooks::of_flags(context.flags())),
      device_clock_(context.device()) {}

Trainer::~Trainer() = default;

void Trainer::add_hook(std::unique_ptr<Hook> hook) { hooks_.push_back(std::move(hook)); }

template <class Call>
void Trainer::for_each_hook(Call call) {
  const SpanScope span(context_.timeline(), Activity::Step, "hooks", progress_.step);
  for (const auto& hook : hooks_) call(*hook);
}

// What one worker cannot do, the others do not wait for.
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
}

// What has to be the same on all workers.
std::vector<std::string> Trainer::plan() const {
  const Flags& flags = context_.flags();
  std::vector<std::string> plan = plan_of(replica_.parameters(), replica_.optimizer().options());
  plan.push_back(fmt::format("lanes {}", flags.lanes));
  plan.push_back(fmt::format("batch {}", flags.batch));
  plan.push_back(fmt::format("seed {}", flags.seed));
  plan.push_back(fmt::format("precision {}", flags.precision));
  plan.push_back(fmt::format("layout {}", flags.layout));
  plan.push_back(fmt::format("drop-remainder {}", flags.drop_remainder));
  plan.push_back(fmt::format("clip_norm {}", options_.clip_norm));
  plan.push_back(to_string(reducer_options(flags)));
  plan.push_back(flags.logdir.empty() ? "no logdir" : "a logdir");
  return plan;
}

FitOptions Trainer::how_far(const FitOptions& options) const {
  if (options.steps > 0 || options.epochs > 0) return options;
  return {.steps = context_.flags().steps, .epochs = context_.flags().epochs};
}

// What has to be the same on all workers in a fit.
std::vector<std::string> Trainer::plan_of_fit(const data::Feed& feed, const FitOptions& options) const {
  return {fmt::format("fit {}", next_fit_), fmt::format("{} examples to train on", feed.size()),
          fmt::format("order {}", static_cast<int>(feed.order())),
          fmt::format("{} steps, {} epochs", how_far(options).steps, how_far(options).epochs)};
}

int64_t Trainer::end_step(const data::Sampler& sampler, const FitOptions& options) const {
  const auto [steps, epochs] = how_far(options);
  return progress_.fit_begin + (steps > 0 ? steps : std::max<int64_t>(1, epochs) * sampler.steps_per_epoch());
}

Training Trainer::make_training(int64_t end_step) {
  Training training{
      .context = context_, .parameters = replica_.parameters(), .optimizer = replica_.optimizer()};
  training.first_step = training.step = training.last_step = progress_.step;
  training.in_step = strategy_->in_step();
  training.went_on = session_.went_on();
  training.end_step = end_step;
  training.events = session_.events();
  training.save_checkpoint = [this] { save(); };
  if (team_->share_of_evaluation().parts > 1)
    training.merge = [this](metrics::Metric& metric) { team_->merge(metric); };
  return training;
}

// A lane without examples is left out, which modules that work on all workers together cannot be. Every
// worker sees it before the first step, and not when an epoch ends.
void Trainer::require_data_in_every_lane(const Training& training, const data::Sampler& sampler) const {
  const int64_t per_epoch = sampler.steps_per_epoch();
  const int64_t first = (training.step - progress_.fit_begin) % per_epoch;
  const int64_t last = std::min(first + training.end_step - training.step, per_epoch) - 1;  // of this epoch
  if (!team_->needs_data_in_every_lane() || last < first || sampler.fills_all_lanes(last)) return;
  fail(ErrorKind::InvalidArgument,
       "SyncBatchNorm needs examples in every lane, but the last step of an epoch does not fill {} lanes of "
       "{} "
       "({} examples in all). Leave it out: --drop-remainder, in place of --no-drop-remainder",
       session_.lanes(), sampler.options().batch, sampler.size());
}

std::chrono::milliseconds Trainer::feed_timeout() const {
  return std::chrono::ceil<std::chrono::milliseconds>(
      std::chrono::duration<double>(context_.flags().feed_timeout));
}

void Trainer::save() {
  const SpanScope span(context_.timeline(), Activity::Save, "checkpoint", progress_.step);
  strategy_->settle();
  team_->save(session_, replica_, progress_);
}

void Trainer::fail_too_few(const data::Sampler& sampler) const {
  const data::SamplerOptions& options = sampler.options();
  if (options.ranges.empty())
    fail(ErrorKind::InvalidArgument,
         "the {} examples do not fill one step of {} lanes with {} each: give a smaller --batch, or "
         "--no-drop-remainder",
         sampler.size(), options.lanes, options.batch);
  const auto shortest = std::min_element(options.ranges.begin(), options.ranges.end(),
                                         [](const auto& a, const auto& b) { return a.size() < b.size(); });
  fail(ErrorKind::InvalidArgument,
       "lane {} has {} examples of its own, which do not fill a step of {}: give a smaller --batch, "
       "--no-drop-remainder, or another partition",
       shortest - options.ranges.begin(), shortest->size(), options.batch);
}

void Trainer::fit(const data::Feed& feed, const FitOptions& options) {
  start_once();
  team_->require_same(plan_of_fit(feed, options));
  if (feed.size() == 0) fail(ErrorKind::InvalidArgument, "the feed has no examples to train on");
  report_.skipped_examples = feed.source().left_out().examples;
  const int64_t this_fit = next_fit_++;
  if (this_fit < progress_.fit) return;  // finished before the run was resumed
  if (this_fit > progress_.fit) {
    progress_.fit = this_fit;
    progress_.fit_begin = progress_.step;
    team_->begin_fit(progress_);
  }
  const data::Sampler sampler(feed.size(), {.order = feed.order(),
                                            .seed = context_.flags().seed,
                                            .lanes = session_.lanes(),
                                            .batch = context_.flags().batch,
                                            .drop_remainder = context_.flags().drop_remainder,
                                            .ranges = feed.ranges(session_.lanes())});
  if (sampler.steps_per_epoch() == 0) fail_too_few(sampler);
  Training training = make_training(end_step(sampler, options));
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
    team_->write_timeline();  // all of them stop here
    throw;
  } catch (const std::exception& error) {
    for_each_hook([&](Hook& hook) { hook.on_error(training, error); });
    team_->abandon(
        fmt::format("{} gave up at step {}: {}", context_.task().short_name(), training.step, error.what()));
    throw;
  }
  fill_report(seconds_since(begin), progress_.examples - examples_before);
}

// Another task was lost, and with it maybe some steps.
void Trainer::start_again(Training& training, const Error& error) {
  const Progress before = progress_;
  context_.log().warning("{}; waiting for it to come back", error.what());
  try {
    strategy_->settle();
  } catch (const Error&) {
    // Where one thing has failed others do.
  }
  start();
  training.step = training.last_step = progress_.step;
  training.went_on = session_.went_on();
  training.events = session_.events();
  if (progress_.fit < before.fit) begin_again(before);
}

// The program has left the fit behind that the newest checkpoint belongs to.
void Trainer::begin_again(const Progress& before) {
  if (progress_.step != before.fit_begin) {
    fail(ErrorKind::PeerLost,
         "the run was set back to step {}, which belongs to an earlier fit() of the program: start it again",
         progress_.step);
  }
  progress_.fit = before.fit;
  progress_.fit_begin = before.fit_begin;
  team_->begin_fit(progress_);
}

void Trainer::run_steps(Training& training, const data::Feed& feed, const data::Sampler& sampler) {
  const StopSignals signals;
  for_each_hook([&](Hook& hook) { hook.after_start(training); });
  // The feed counts its steps from the beginning of this fit.
  const StepRange steps = strategy_->data_steps(
      training.step - progress_.fit_begin, std::max(training.step, training.end_step) - progress_.fit_begin);
  strategy_->ends_at(training.end_step);
  data::BatchQueue queue(feed, sampler,
                         {.first_step = steps.begin,
                          .end_step = steps.end,
                          .first_lane = strategy_->lanes().begin,
                          .end_lane = strategy_->lanes().end,
                          .device = replica_.options().device,
                          .timeout = feed_timeout(),
                          .timeline = context_.timeline(),
                          .step_in_timeline = progress_.fit_begin});
  last_step_.wishes = {};
  int64_t stop = wish_to_stop(training, signals);
  // Whoever makes steps by itself stops by itself.
  const bool agreeing = training.in_step && !team_->is_alone();
  while (training.step < training.end_step && (agreeing || stop == 0)) {
    one_step(training, queue, stop);
    if (agreeing && last_step_.wishes.stop != 0) break;
    stop = wish_to_stop(training, signals);
  }
  team_->finish_fit(*strategy_, progress_);
  training.step = progress_.step;
  for_each_hook([&](Hook& hook) { hook.end(training); });
  end_as_wished(training, agreeing ? last_step_.wishes.stop : stop, signals);
}

void Trainer::one_step(Training& training, data::BatchQueue& queue, int64_t stop) {
  const SpanScope span(context_.timeline(), Activity::Step, "step", training.step);
  if (options_.learning_rate) replica_.optimizer().set_learning_rate(options_.learning_rate(training.step));
  training.wishes = {.stop = stop, .save = false};
  for_each_hook([&](Hook& hook) { hook.before_step(training); });
  device_clock_.begin_step();
  const StepResult result = strategy_->step(
      training.step, training.wishes, queue, [&](int64_t lane, const Batch& batch, const LossOutput& output) {
        for_each_hook([&](Hook& hook) { hook.after_lane(training, lane, batch, output); });
      });
  device_clock_.end_step();
  progress_.step = training.step = result.step;
  if (!result.made) return;
  last_step_ = result;
  progress_.examples += result.examples;
  for_each_hook([&](Hook& hook) { hook.after_step(training, result); });
  training.last_step = training.step;
}

void Trainer::fill_report(double seconds, int64_t examples) {
  report_.strategy = strategy_->name();
  report_.reduce = strategy_->reduce();
  report_.world = team_->world();
  report_.seconds += seconds;
  report_.examples_per_second = seconds > 0 ? static_cast<double>(examples) / seconds : 0;
  if (last_step_.has_loss()) report_.loss = last_step_.loss();
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

// Lane by lane: which batches there are does not depend on the number of workers, unless lanes are too few
// for them.
std::map<std::string, double> Trainer::measure(const data::Feed& feed, const metrics::List& list,
                                               const EvaluateOptions& options) {
  start_once();
  for (const auto& metric : list) metric->reset();
  or_abandon("evaluate", [&] {
    const Team::Share share = team_->share_of_evaluation();
    if (share.part < 0) return;
    const int64_t lanes = std::max<int64_t>(session_.lanes(), share.parts);
    const data::Sampler sampler(feed.size(), {.order = data::Order::Sequential,
                                              .lanes = lanes,
                                              .batch = options.batch,
                                              .ranges = feed.ranges(lanes)});
    for_each_batch(feed, sampler, lanes_of(share.part, share.parts, lanes), [&](const Batch& batch) {
      const torch::Tensor prediction = replica_.predict(batch);
      for (const auto& metric : list) metric->update(prediction, batch);
    });
  });
  std::map<std::string, double> values;
  strategy_->settle();
  for (const auto& metric : list) {
    team_->merge(*metric);
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
  if (context_.is_chief())
    context_.log().info("evaluated {} examples in {:.1f} s:{}", feed.size(), seconds_since(begin), text);
  session_.write(report_);
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
