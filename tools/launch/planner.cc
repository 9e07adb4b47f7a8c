#include "tools/launch/planner.h"

#include <algorithm>

#include <fmt/format.h>

#include "tools/launch/gpus.h"
#include "tools/launch/meeting.h"
#include "tools/launch/meeting_words.h"
#include "tutti/base/error.h"
#include "tutti/base/ports.h"

namespace tutti {
namespace {

// "worker|127.0.0.1:4711;127.0.0.1:4712".
ClusterSpec cluster_of(int workers) {
  ClusterSpec::Tasks tasks;
  for (const int port : free_ports(workers))
    tasks.emplace(static_cast<int>(tasks.size()), fmt::format("127.0.0.1:{}", port));
  return ClusterSpec({{"worker", std::move(tasks)}});
}

TaskPlan plan_of(const ClusterSpec& cluster, const Task& task) {
  return {task.short_name(),
          {{"TUTTI_CLUSTER_SPEC", cluster.to_string()},
           {"TUTTI_JOB_NAME", task.job},
           {"TUTTI_TASK_INDEX", std::to_string(task.index)}}};
}

std::string counted(size_t number, std::string_view what) {
  return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
}

}  // namespace

Planner::Planner(const Environment& environment, const LaunchOptions& options, const Log& log)
    : options_(options), log_(log), hosts_(Hosts::from(environment)), gpus_(visible_gpus(environment)) {
  if (stands_outside() && options_.workers.value_or(1) != 1) {
    fail(ErrorKind::InvalidArgument,
         "tutti run: -n {}, but TF_CONFIG says that this is {}, which is one process: leave -n out",
         *options_.workers, hosts_->own() ? hosts_->name_of(*hosts_->own()) : "an evaluator");
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
  const ClusterSpec cluster = cluster_of(workers_here());
  for (const int index : cluster.task_indices("worker")) {
    plan.tasks.push_back(plan_of(cluster, {.job = "worker", .index = index}));
    give_gpu(static_cast<size_t>(index), plan.tasks.back());
  }
  return plan;
}

Plan Planner::with_other_hosts(SignalPipe& signals) const {
  const MeetingResult met = meet(*hosts_, workers_here(), options_.start_timeout, signals, log_);
  if (met.signal) return {{}, met.signal};
  const Hosts::Spread spread = hosts_->spread(met.workers);
  Plan plan;
  for (const Task& task : spread.tasks.at(*hosts_->own())) {
    plan.tasks.push_back(plan_of(spread.cluster, task));
    plan.tasks.back().variables["TF_CONFIG"] = hosts_->config_for(spread.cluster, task);
    if (!stands_outside()) give_gpu(plan.tasks.size() - 1, plan.tasks.back());
  }
  return plan;
}

// Its own; round robin where there are more workers than GPUs.
void Planner::give_gpu(size_t index, TaskPlan& task) const {
  if (!gpus_.empty()) task.variables["CUDA_VISIBLE_DEVICES"] = gpus_[index % gpus_.size()];
}

void Planner::compare_numbers() const {
  const auto workers = static_cast<size_t>(workers_here());
  if (gpus_.empty() || stands_outside() || workers == gpus_.size()) return;
  const std::string both = fmt::format("{} on {}", counted(workers, "worker"), counted(gpus_.size(), "GPU"));
  if (workers > gpus_.size()) {
    log_.warning("{}: they share them in turn", both);
  } else {
    log_.info("{}: one each, the others are left idle", both);
  }
}

}  // namespace tutti
