#include <iterator>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/hashes.h"
#include "tutti/params/random_scope.h"
#include "tutti/store/manifest.h"
#include "tutti/train/hooks.h"
#include "tutti/train/replica.h"
#include "tutti/train/training_run.h"

// The part of TrainingRun that prepares and starts a training: its hooks, the state that checkpoints contain,
// the plan, and the start.
namespace tutti {
namespace {

// Returns what the bits of the result depend on besides the program and its settings, each with the flag that
// makes them independent of it.
std::vector<std::string> what_decides_bits(const RunConfig& config, const store::Report& plan,
                                           const RunFacts& facts, int64_t lanes) {
  std::vector<std::string> all;
  const bool several = plan.world > 1;
  if (several && plan.strategy == "ps-async") {
    all.emplace_back(
        "the number of workers, and on whose update comes first (--strategy ps-sync makes the same bits each "
        "time)");
  } else if (!facts.depends_on_workers.empty()) {
    all.push_back(fmt::format("the number of workers ({})", fmt::join(facts.depends_on_workers, ", ")));
  } else if (config.training.lanes == 0 && lanes == plan.world) {
    // The program, or a checkpoint, may fix the number of lanes as well.
    all.emplace_back("the number of workers (set --lanes)");
  }
  if (several && plan.strategy == "ps-sync" && config.servers.backup > 0)
    all.emplace_back("which workers are late (set --backup 0)");
  if (config.compute.threads == 0 && facts.conditions.contains("threads"))
    all.emplace_back("the number of cores (set --threads)");
  return all;
}

// Returns a checksum of the values of the parameters and of the floating buffers, on any device.
uint32_t checksum_of(const Parameters& parameters) {
  uint32_t sum = 0;
  const auto add = [&sum](const torch::Tensor& vector) {
    const torch::Tensor values = vector.detach().to(torch::kCPU);
    sum = crc32c({static_cast<const std::byte*>(values.data_ptr()), values.nbytes()}, sum);
  };
  for (const Section& block : parameters.blocks()) add(block.values);
  for (const torch::Tensor& buffers : parameters.buffer_vectors()) add(buffers);
  return sum;
}

std::string generator_name(int rank, size_t generator) { return fmt::format("rank{}.{}", rank, generator); }

// The rank in the group is the one that the worker has then.
StatePart generators_part(torch::Device device, const Group& group) {
  const auto snapshot = [device, &group] {
    Snapshot states;
    for (const torch::Tensor& state : generator_states(device))
      states.tensors.push_back({generator_name(group.rank, states.tensors.size()), state});
    return states;
  };
  // A run with more workers than before starts the additional ones with the generators that they have.
  const auto restore = [device, &group](const Snapshot& snapshot) {
    std::vector<torch::Tensor> states;
    for (const auto& [name, tensor] : snapshot.tensors) {
      if (name == generator_name(group.rank, states.size())) states.push_back(tensor);
    }
    set_generator_states(device, states);
  };
  return {snapshot, restore};
}

}  // namespace

TrainingRun::TrainingRun(const Context& context, Strategy& strategy, std::vector<SessionPart> parts,
                         const SessionOptions& options, Replica* replica)
    : context_(context),
      strategy_(strategy),
      tables_(strategy.replica().tables()),
      replica_(replica),
      session_(context, strategy.group(), parts, options),
      training_{.context = context,
                .run = *this,
                .group = strategy.group(),
                .parameters = parts.front().parameters,
                .optimizer = parts.front().optimizer,
                .parts = parts,
                .has_rows = !tables_.empty(),
                .module = replica != nullptr ? &replica->module() : nullptr},
      stop_after_(context.config().training.stop_after),
      joins_(strategy.joins()),
      is_chief_(strategy.group().is_chief()),
      device_clock_(context.device()) {
  report_.complete = false;
  training_.folder = session_.folder();
  if (training_.writes()) pass_advice_ = PassAdvice(&context.log());
  add_state(kGenerators, generators_part(context.device(), strategy.group()));
  try {
    hooks_ = hooks::of_flags(context.config());
  } catch (const std::exception& error) {
    abandon("could not start", error);
    throw;
  }
  validation_ = add_first_hook(std::make_unique<EvaluationHook>());
  evaluations_ = {validation_};
  history_ = add_first_hook(std::make_unique<HistoryHook>());
  // Before the validation, whose time is not part of a step.
  if (context.page() != nullptr) add_first_hook(hooks::web_page());
}

void TrainingRun::validate(Evaluation evaluation) {
  if (evaluation.every_steps.value_or(0) == 0 && evaluation.every_epochs == 0) evaluation.every_epochs = 1;
  validation_->set(std::move(evaluation));
  validation_->reserve(training_);
}

void TrainingRun::keep_average(const std::vector<double>& decays) {
  std::vector<MovingAverage::Net> nets;
  for (size_t i = 0; i < decays.size(); ++i) {
    const SessionPart& part = training_.parts.at(i);
    if (decays[i] != 0) nets.push_back({part.name, part.parameters, decays[i], i == 0 ? &tables_ : nullptr});
  }
  tables_.keep_average(decays.front());
  if (nets.empty()) return;
  training_.average = add_first_hook(std::make_unique<MovingAverage>(std::move(nets)));
  add_state(store::kAveragePart, training_.average->part());
}

void TrainingRun::add_hook(std::unique_ptr<Hook> hook) {
  if (auto* const evaluation = dynamic_cast<EvaluationHook*>(hook.get())) {
    evaluation->reserve(training_);
    evaluations_.push_back(evaluation);
  }
  const bool saves = !context_.config().checkpoints.logdir.empty();  // the last hook saves checkpoints
  hooks_.insert(saves ? std::prev(hooks_.end()) : hooks_.end(), std::move(hook));
  has_own_hooks_ = true;
}

// Returns the names of the parts of the state that belong to the hooks. Hooks of the same kind are told apart
// by their order.
std::vector<std::string> TrainingRun::hook_names() const {
  std::vector<std::string> names;
  std::map<std::string, int> seen;
  for (const auto& hook : hooks_) {
    std::string name = "hook-" + hook->name();
    const int before = seen[name]++;
    if (before > 0) name += fmt::format("-{}", before + 1);
    names.push_back(std::move(name));
  }
  return names;
}

// Returns the state besides the nets and their optimisers.
Snapshots TrainingRun::state() const {
  Snapshots all;
  for (const auto& [name, part] : parts_) all[name] = part.snapshot();
  const std::vector<std::string> names = hook_names();
  for (size_t i = 0; i < hooks_.size(); ++i) all[names[i]] = hooks_[i]->state();
  std::erase_if(all, [](const auto& entry) { return entry.second.empty(); });
  return all;
}

// Restores the hooks before the first step after each start.
void TrainingRun::restore_hooks() {
  if (!std::exchange(hooks_are_stale_, false)) return;
  const std::vector<std::string> names = hook_names();
  for (size_t i = 0; i < hooks_.size(); ++i)
    restore_part(names[i], [&](const Snapshot& state) { hooks_[i]->restore(state); });
}

void TrainingRun::add_state(const std::string& name, StatePart part) {
  const bool is_valid = !name.empty() && name.find_first_not_of(
                                             "abcdefghijklmnopqrstuvwxyz"
                                             "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                             "0123456789_-") == std::string::npos;
  if (!is_valid)
    tutti::fail(ErrorKind::InvalidArgument,
                "'{}' is not a valid name for a part of the state: use letters and digits", name);
  if (name == store::kWeightsPart || name == store::kOptimizerPart || name == store::kRowsPart)
    tutti::fail(ErrorKind::InvalidArgument,
                "'{}' is not available as a name for a part of the state, since Tutti's own part has it",
                name);
  if (!parts_.emplace(name, part).second)
    tutti::fail(ErrorKind::InvalidArgument, "two parts of the state are called '{}'", name);
  restore_part(name, part.restore);
}

void TrainingRun::restore_part(const std::string& name, const std::function<void(const Snapshot&)>& restore) {
  const auto found = found_.find(name);
  if (found == found_.end()) return;
  try {
    restore(found->second);
  } catch (const Json::exception& error) {
    tutti::fail(ErrorKind::DataLoss, "the part '{}' of the checkpoint cannot be restored: {}", name,
                error.what());
  }
  found_.erase(found);
}

void TrainingRun::start(const std::vector<std::string>& plan) {
  const SpanScope span(context_.timeline(), Activity::Step, "start");
  plan_ = plan;
  session_.set_state([this] { return state(); });
  joins_ ? join() : begin_together();
}

void TrainingRun::begin_run() {
  Strategy::Start start = strategy_.start(session_, plan_);
  progress_ = start.progress;
  report_.lost_steps += start.lost_steps;
  found_ = std::move(start.more);
  hooks_are_stale_ = true;
  if (may_change()) {
    add_change();
    report_.changes = strategy_.share("the changes of the workers", [this] { return report_.changes; });
  }
  // A worker that joins without a saved average begins with the values of the run, not with its own.
  if (session_.went_on() && training_.average != nullptr && !found_.contains(store::kAveragePart))
    training_.average->restart();
  for (const auto& [name, part] : parts_) restore_part(name, part.restore);
  if (!std::exchange(plan_logged_, true) && strategy_.group().is_chief()) log_plan();
  remember_parameters();
  has_begun_ = true;
}

void TrainingRun::remember_parameters() {
  if (strategy_.facts().keeps_parameters_elsewhere) checksum_ = checksum_of(training_.parameters);
}

void TrainingRun::require_parameters_as_they_were(const char* since) const {
  const StrategyFacts& facts = strategy_.facts();
  if (!facts.keeps_parameters_elsewhere || checksum_ == checksum_of(training_.parameters)) return;
  tutti::fail(
      ErrorKind::InvalidArgument,
      "the parameters or buffers were changed {} (at step {}), but with --strategy {} the parameter servers "
      "hold them, so the change would be lost. Let the optimiser make such changes (for example "
      "weight_decay), keep values computed from the parameters, such as a moving average, in tensors "
      "outside the model until the training has ended, or use --strategy allreduce",
      since, progress_.step, facts.name);
}

// Says once how the model is trained, and what leaves the bits of the result open.
void TrainingRun::log_plan() {
  const RunConfig& config = context_.config();
  store::Report plan;
  strategy_.fill(plan);
  const auto counted = [](int64_t count, const char* what) {
    return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
  };
  context_.log().info("training with {}: {}, {}, {}, {} on {}{}", plan.strategy,
                      counted(plan.world, "worker"), counted(session_.lanes(), "lane"),
                      counted(context_.threads(), "thread"), config.compute.precision,
                      training_.parameters.device().str(),
                      context_.chosen_kernels() == "libtorch" ? "" : ", the same kernels on every processor");
  if (training_.average != nullptr)
    context_.log().info("validations and evaluations are of the moving average of the weights");
  if (const auto open = what_decides_bits(config, plan, session_.facts(), session_.lanes()); !open.empty())
    context_.log().info("the bits of the result depend on {}", fmt::join(open, " and on "));
}

std::vector<std::string> TrainingRun::plan() {
  constexpr int64_t kOfSteps = 10000;
  note_evaluations();
  std::vector<std::string> plan;
  for (const EvaluationHook* evaluation : evaluations()) plan.push_back(evaluation->plan());
  if (plan.empty()) plan.emplace_back("never evaluated");
  for (size_t i = 0; i < schedules_.size(); ++i) {
    if (!schedules_[i]) continue;
    const std::string& part = training_.parts.at(i).name;
    for (const int64_t step : {int64_t{0}, int64_t{100}, int64_t{1000}, kOfSteps})
      plan.push_back(fmt::format("learning rate{} {} at step {} of {}", part.empty() ? "" : " of " + part,
                                 schedules_[i](step, kOfSteps), step, kOfSteps));
  }
  return plan;
}

// Warns if the schedules were made for another number of steps than the run has.
void TrainingRun::warn_of_other_lengths() const {
  const int64_t end = length_.end_step;
  if (!strategy_.group().is_chief() || progress_.step >= end || end == Training::kEndless) return;
  for (const Schedule& schedule : schedules_) {
    const int64_t scheduled = schedule.end().value_or(end);
    if (end > scheduled)
      context_.log().warning(
          "the learning rate is scheduled for {} steps, but the training ends after step {}: from step {} on "
          "it stays at {:g}. A schedule without a length is as long as the run",
          scheduled, end, scheduled, schedule(scheduled, end));
    else if (end < scheduled && length_.ends_the_run)
      context_.log().warning(
          "the learning rate is scheduled for {} steps, but the training ends after step {}, where it is "
          "still {:g}. A schedule without a length is as long as the run",
          scheduled, end, schedule(end, end));
    if (schedule.follows_the_run() && progress_.end_step > 0 && progress_.end_step != end)
      context_.log().warning(
          "the run was to end after step {}, and now ends after step {}: from here on the learning rate is "
          "scheduled for {} steps, so it is another one than before at the same step",
          progress_.end_step, end, end);
  }
}

}  // namespace tutti
