#include "tutti/cluster/task_context.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tutti/base/environment.h"
#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/cluster/roles.h"

namespace tutti {
namespace {

bool stands_alone(const Identity& identity) {
  return identity.membership.world == 1 && !identity.is_evaluator && servers_of(identity.cluster).empty();
}

std::shared_ptr<Timeline> make_timeline(const RunConfig& config) {
  if (config.output.timeline.empty()) return nullptr;
  auto timeline = std::make_shared<Timeline>();
  timeline->name_thread("main");
  return timeline;
}

// Returns the config of a task. If it has no secret, it gets the secret of the launcher.
RunConfig checked(RunConfig config, const Identity& identity) {
  if (!config.output.report.empty() && config.output.report == config.output.timeline)
    fail(ErrorKind::InvalidArgument, "--report and --timeline name the same file: {}", config.output.report);
  if (config.security.secret.empty()) config.security.secret = identity.secret;
  return config;
}

// Returns the flags among `values` that a program has added to the standard ones.
FlagValues added_by_program(const FlagValues& values) {
  if (values.empty()) return {};
  const FlagValues standard = values_of(RunConfig());
  FlagValues added;
  std::copy_if(values.begin(), values.end(), std::back_inserter(added), [&](const FlagValue& value) {
    return std::none_of(standard.begin(), standard.end(),
                        [&](const FlagValue& other) { return other.name == value.name; });
  });
  return added;
}

FlagValues all_values(FlagValues program_flags, const RunConfig& config) {
  for (FlagValue& value : values_of(config)) program_flags.push_back(std::move(value));
  return program_flags;
}

// Returns the identity from the environment if this process is one of several tasks, else nullopt.
std::optional<Identity> place_among_others() {
  try {
    Identity found = discover(RunConfig(), Environment::of_process());
    if (found.membership.world > 1 || found.is_evaluator || is_server_job(found.task.job)) return found;
  } catch (const Error&) {
    // Contradictory variables are reported only to callers of discover().
  }
  return std::nullopt;
}

void require_own_place(const Identity& identity) {
  if (identity.source != Identity().source || identity.membership.world != 1) return;
  if (const auto found = place_among_others()) {
    fail(ErrorKind::InvalidArgument,
         "this process is {} in a job of {} workers (found through {}), but its Context was given the "
         "Identity of a single process. Use Context(config), which finds the identity of this process, or "
         "tutti::run(). To run alone on purpose, set Identity::source",
         found->task.short_name(), found->membership.world, found->source);
  }
}

}  // namespace

TaskContext::TaskContext(RunConfig config, Identity identity, const FlagValues& values,
                         const Log::Listener& listener)
    : config_(checked(std::move(config), identity)),
      program_flags_(added_by_program(values)),
      flag_values_(all_values(program_flags_, config_)),
      identity_(std::move(identity)),
      log_(parse_log_level(config_.output.log_level),
           stands_alone(identity_) ? "" : identity_.task.short_name(), listener),
      timeline_(make_timeline(config_)) {
  require_own_place(identity_);
}

void TaskContext::set_config(RunConfig config) {
  config_ = checked(std::move(config), identity_);
  flag_values_ = all_values(program_flags_, config_);
}

TaskContext TaskContext::at(const Membership& membership) const {
  TaskContext copy = *this;
  copy.identity_.membership = membership;
  copy.identity_.is_chief = membership.rank == 0;
  copy.chief_ = std::make_shared<std::atomic<bool>>(copy.identity_.is_chief);
  return copy;
}

int TaskContext::rank_at(const Task& task) const {
  const std::vector<Task> workers = workers_of(identity_);
  const auto found = std::find(workers.begin(), workers.end(), task);
  if (found == workers.end())
    fail(ErrorKind::InvalidArgument, "{} is not a worker of this job, which has {}", task.short_name(),
         workers.size() == 1 ? fmt::format("one worker, {}", workers.front().short_name())
                             : fmt::format("{} workers, {} to {}", workers.size(),
                                           workers.front().short_name(), workers.back().short_name()));
  return static_cast<int>(found - workers.begin());
}

std::string TaskContext::tf_config() const {
  if (cluster().empty() && world() > 1) return "";
  Json config = Json::object();
  if (!cluster().empty()) config["cluster"] = Json::parse(cluster().to_json());
  config["task"] = {{"type", task().job}, {"index", task().index}};
  return config.dump();
}

void TaskContext::require_worker() const {
  if (identity_.is_evaluator) {
    fail(ErrorKind::InvalidArgument,
         "{} is an evaluator, which does not train: the fit() of its Trainer, or its Loop, evaluates the "
         "checkpoints of the training",
         task().short_name());
  }
  if (is_server_job(task().job)) {
    fail(ErrorKind::InvalidArgument,
         "{} is a parameter server, which does not train: call tutti::serve(context) in it, "
         "as tutti::run() does",
         task().short_name());
  }
}

std::vector<std::string> TaskContext::shared_flags() const {
  std::vector<std::string> lines;
  for (const FlagValue& flag : flag_values_) {
    if (flag.scope != FlagScope::Local) lines.push_back(fmt::format("{} {}", flag.name, flag.text));
  }
  return lines;
}

}  // namespace tutti
