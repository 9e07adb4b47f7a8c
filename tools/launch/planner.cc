#include "tools/launch/planner.h"

#include <algorithm>

#include <fmt/format.h>

#include "tools/launch/gpus.h"
#include "tools/launch/meeting.h"
#include "tools/launch/meeting_words.h"
#include "tutti/base/address.h"
#include "tutti/base/error.h"
#include "tutti/base/ports.h"
#include "tutti/base/random_key.h"
#include "tutti/base/secret.h"
#include "tutti/cluster/identity.h"

namespace tutti {
namespace {

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

// Gives the task a GPU of its own. If there are more workers than GPUs, they are assigned in turn.
void give_gpu(size_t index, const std::vector<std::string>& gpus, TaskPlan& task) {
  if (!gpus.empty()) task.variables["CUDA_VISIBLE_DEVICES"] = gpus[index % gpus.size()];
}

TaskRole role_of(const std::string& job) {
  if (job == kServerJob) return TaskRole::Server;
  if (job == kMasterJob) return TaskRole::Master;
  return job == kEvaluatorJob ? TaskRole::Evaluator : TaskRole::Worker;
}

std::string counted(size_t number, std::string_view what) {
  return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
}

}  // namespace

Planner::Planner(const Environment& environment, const LaunchOptions& options, const Log& log)
    : options_(options),
      secret_(environment.get("TUTTI_SECRET").value_or("")),
      log_(log),
      hosts_(JobHosts::from(environment)),
      gpus_(visible_gpus(environment)) {
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
  if (has_other_hosts())
    require_secret(parse_address(hosts_->first_address()).host, !secret_.empty(), options_.insecure);
  if (stands_outside()) return;
  warn_of_missing_gpus(gpus_, log_);
  compare_numbers(static_cast<size_t>(workers_here()), gpus_.size(), options_.evaluator, log_);
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
  const std::vector<std::pair<const char*, int>> jobs = {{kServerJob, options_.servers},
                                                         {kMasterJob, options_.master ? 1 : 0},
                                                         {kWorkerJob, workers_here()},
                                                         {kEvaluatorJob, options_.evaluator ? 1 : 0}};
  std::vector<Task> tasks;
  for (const auto& [job, size] : jobs) {
    for (int index = 0; index < size; ++index) tasks.push_back({.job = job, .index = index});
  }
  const ClusterSpec cluster = cluster_of({jobs.begin(), jobs.end() - 1});  // it has no evaluator
  return {plan_tasks(cluster, tasks, random_key(), gpus_), std::nullopt};
}

Plan Planner::with_other_hosts(SignalPipe& signals) const {
  const MeetingResult met = meet(*hosts_, workers_here(), {secret_, options_.start_timeout}, signals, log_);
  if (met.signal) return {{}, met.signal};
  const JobHosts::Spread spread = hosts_->spread(met.workers);
  Plan plan;
  for (const Task& task : spread.tasks.at(*hosts_->own())) {
    plan.tasks.push_back(plan_of(spread.cluster, task, met.launch));
    plan.tasks.back().variables["TF_CONFIG"] = hosts_->config_for(spread.cluster, task);
    if (!stands_outside()) give_gpu(plan.tasks.size() - 1, gpus_, plan.tasks.back());
  }
  return plan;
}

std::vector<TaskPlan> plan_tasks(const ClusterSpec& cluster, const std::vector<Task>& tasks,
                                 const std::string& launch, const std::vector<std::string>& gpus) {
  std::vector<TaskPlan> plans;
  size_t next_gpu = 0;
  for (const Task& task : tasks) {
    TaskPlan& plan = plans.emplace_back(plan_of(cluster, task, launch));
    plan.role = role_of(task.job);
    if (plan.role == TaskRole::Server || plan.role == TaskRole::Master) {
      plan.variables["CUDA_VISIBLE_DEVICES"] = "";
    } else {
      give_gpu(next_gpu++, gpus, plan);  // the evaluator's is idle, or that of a worker
    }
  }
  return plans;
}

void compare_numbers(size_t workers, size_t gpus, bool evaluator, const Log& log) {
  if (gpus == 0 || workers == gpus) return;
  if (evaluator && workers >= gpus)
    log.warning("the evaluator shares a GPU with a worker, since {} for {}",
                gpus == 1 ? "there is only one" : fmt::format("there are {}", gpus),
                counted(workers, "worker"));
  const std::string both = fmt::format("{} on {}", counted(workers, "worker"), counted(gpus, "GPU"));
  if (workers > gpus) {
    log.warning("{}: workers share GPUs, assigned in turn", both);
  } else {
    log.info("{}: each worker gets one, and the other GPUs stay idle", both);
  }
}

}  // namespace tutti
