#include "tools/launch/planner.h"

#include <algorithm>

#include <fmt/format.h>

#include "tools/launch/gpus.h"
#include "tools/launch/meeting.h"
#include "tools/launch/meeting_words.h"
#include "tutti/base/error.h"
#include "tutti/base/ports.h"
#include "tutti/base/random_key.h"
#include "tutti/cluster/identity.h"

namespace tutti {
namespace {

constexpr const char* kServers = "ps";
constexpr const char* kMaster = "master";
constexpr const char* kWorkers = "worker";
constexpr const char* kEvaluator = "evaluator";

// Returns a cluster such as "ps|127.0.0.1:4710,worker|127.0.0.1:4711;127.0.0.1:4712".
ClusterSpec cluster_of(const std::vector<std::pair<const char*, int>>& jobs) {
  int tasks = 0;
  for (const auto& [job, size] : jobs) tasks += size;
  const std::vector<int> ports = free_ports(tasks);
  auto port = ports.begin();
  std::vector<std::pair<std::string, ClusterSpec::Tasks>> cluster;
  for (const auto& [job, size] : jobs) {
    if (size == 0) continue;
    ClusterSpec::Tasks& addresses = cluster.emplace_back(job, ClusterSpec::Tasks()).second;
    for (int index = 0; index < size; ++index) addresses.emplace(index, fmt::format("127.0.0.1:{}", *port++));
  }
  return ClusterSpec(cluster);
}

TaskPlan plan_of(const ClusterSpec& cluster, const Task& task, const std::string& launch) {
  return {task.short_name(),
          {{"TUTTI_CLUSTER_SPEC", cluster.to_string()},
           {"TUTTI_JOB_NAME", task.job},
           {"TUTTI_TASK_INDEX", std::to_string(task.index)},
           {kLaunchVariable, launch}}};
}

std::string counted(size_t number, std::string_view what) {
  return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
}

}  // namespace

Planner::Planner(const Environment& environment, const LaunchOptions& options, const Log& log)
    : options_(options), log_(log), hosts_(JobHosts::from(environment)), gpus_(visible_gpus(environment)) {
  if (stands_outside() && options_.workers.value_or(1) != 1) {
    fail(ErrorKind::InvalidArgument,
         "tutti run: -n {} is not possible: TF_CONFIG makes this host {}, which is a single process; omit -n",
         *options_.workers, hosts_->own() ? hosts_->name_of(*hosts_->own()) : "an evaluator");
  }
  if (hosts_ && options_.servers > 0) {
    fail(ErrorKind::InvalidArgument,
         "tutti run: --ps {} cannot be combined with TF_CONFIG; name the servers in TF_CONFIG, and start "
         "each with its own `tutti run`",
         options_.servers);
  }
  if (hosts_ && options_.evaluator) {
    fail(ErrorKind::InvalidArgument,
         "tutti run: --evaluator cannot be combined with TF_CONFIG; start the evaluator with a TF_CONFIG of "
         "its "
         "own, whose task has the type \"evaluator\"");
  }
  compare_numbers();
}

Plan Planner::plan(SignalPipe& signals) const {
  if (!hosts_) return on_this_machine();
  if (!hosts_->own()) return {{{"evaluator", {}}}, std::nullopt};
  return with_other_hosts(signals);
}

bool Planner::stands_outside() const {
  return hosts_ && (!hosts_->own() || hosts_->is_server(*hosts_->own()));
}

int Planner::workers_here() const {
  if (stands_outside()) return 1;
  const size_t most = kMostWorkersOfAHost;
  return options_.workers.value_or(static_cast<int>(std::clamp<size_t>(gpus_.size(), 1, most)));
}

Plan Planner::on_this_machine() const {
  Plan plan;
  const ClusterSpec cluster = cluster_of(
      {{kServers, options_.servers}, {kMaster, options_.master ? 1 : 0}, {kWorkers, workers_here()}});
  const std::string launch = random_key();
  for (int index = 0; index < options_.servers; ++index) {
    plan.tasks.push_back(plan_of(cluster, {.job = kServers, .index = index}, launch));
    plan.tasks.back().role = TaskRole::Server;
    plan.tasks.back().variables["CUDA_VISIBLE_DEVICES"] = "";
  }
  if (options_.master) {
    plan.tasks.push_back(plan_of(cluster, {.job = kMaster, .index = 0}, launch));
    plan.tasks.back().role = TaskRole::Master;
    plan.tasks.back().variables["CUDA_VISIBLE_DEVICES"] = "";
  }
  for (const int index : cluster.task_indices(kWorkers)) {
    plan.tasks.push_back(plan_of(cluster, {.job = kWorkers, .index = index}, launch));
    give_gpu(static_cast<size_t>(index), plan.tasks.back());
  }
  if (options_.evaluator) {
    plan.tasks.push_back(plan_of(cluster, {.job = kEvaluator, .index = 0}, launch));
    plan.tasks.back().role = TaskRole::Evaluator;
    give_gpu(static_cast<size_t>(workers_here()),
             plan.tasks.back());  // one that is idle, or that of a worker
  }
  return plan;
}

Plan Planner::with_other_hosts(SignalPipe& signals) const {
  const MeetingResult met = meet(*hosts_, workers_here(), options_.start_timeout, signals, log_);
  if (met.signal) return {{}, met.signal};
  const JobHosts::Spread spread = hosts_->spread(met.workers);
  Plan plan;
  for (const Task& task : spread.tasks.at(*hosts_->own())) {
    plan.tasks.push_back(plan_of(spread.cluster, task, met.launch));
    plan.tasks.back().variables["TF_CONFIG"] = hosts_->config_for(spread.cluster, task);
    if (!stands_outside()) give_gpu(plan.tasks.size() - 1, plan.tasks.back());
  }
  return plan;
}

// Gives the task a GPU of its own. If there are more workers than GPUs, they are assigned in turn.
void Planner::give_gpu(size_t index, TaskPlan& task) const {
  if (!gpus_.empty()) task.variables["CUDA_VISIBLE_DEVICES"] = gpus_[index % gpus_.size()];
}

void Planner::compare_numbers() const {
  const auto workers = static_cast<size_t>(workers_here());
  if (gpus_.empty() || stands_outside() || workers == gpus_.size()) return;
  if (options_.evaluator && workers >= gpus_.size())
    log_.warning("the evaluator shares a GPU with a worker, since {} for {}",
                 gpus_.size() == 1 ? "there is only one" : fmt::format("there are {}", gpus_.size()),
                 counted(workers, "worker"));
  const std::string both = fmt::format("{} on {}", counted(workers, "worker"), counted(gpus_.size(), "GPU"));
  if (workers > gpus_.size()) {
    log_.warning("{}: workers share GPUs, assigned in turn", both);
  } else {
    log_.info("{}: each worker gets one, and the other GPUs stay idle", both);
  }
}

}  // namespace tutti
