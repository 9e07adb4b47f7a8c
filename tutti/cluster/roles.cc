#include "tutti/cluster/roles.h"

#include <algorithm>

#include <fmt/format.h>

#include "tutti/base/address.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti {
namespace {

constexpr std::string_view kEvaluator = "evaluator";

bool comes_first(std::string_view job) { return job == "chief" || job == "master"; }

// Appends tasks 0 to the highest index: gaps are tasks too, whose addresses this task does not know.
void append_tasks(const ClusterSpec& cluster, const std::string& job, std::vector<Task>& tasks) {
  const int last = cluster.task_indices(job).back();
  for (int index = 0; index <= last; ++index) tasks.push_back({.job = job, .index = index});
}

std::string host_of(const ClusterSpec& cluster, const Task& task) {
  const auto& tasks = cluster.tasks(task.job);
  const auto found = tasks.find(task.index);
  return found == tasks.end() ? "" : parse_address(found->second).host;
}

// Sets the rank of `task` in `row`, and its local rank among the tasks on the same host.
void stand(const ClusterSpec& cluster, const std::vector<Task>& row, const Task& task,
           Membership& membership) {
  const std::string host = host_of(cluster, task);
  membership.local_world = 0;
  for (size_t rank = 0; rank < row.size(); ++rank) {
    if (row[rank] == task) {
      membership.rank = static_cast<int>(rank);
      membership.local_rank = membership.local_world;
    }
    if (host_of(cluster, row[rank]) == host) ++membership.local_world;
  }
}

// A name with swapped letters is taken for a typing mistake: otherwise the tasks of the job would become
// workers, which wait for each other.
void require_no_misspelt_job(const ClusterSpec& cluster) {
  const std::vector<std::string> known = {"chief", "master", "worker", "ps", "parameter_server", "evaluator"};
  for (const std::string& job : cluster.jobs()) {
    const auto meant = nearest(job, known);
    if (meant && *meant != job && std::is_permutation(job.begin(), job.end(), meant->begin(), meant->end()))
      fail(ErrorKind::InvalidArgument, "the cluster has a job '{}'; did you mean '{}'?", job, *meant);
  }
}

// Returns the address of the chief if it is known already, else "".
std::string meeting_place(const ClusterSpec& cluster, const std::vector<Task>& workers) {
  if (workers.empty()) return "";
  const auto& tasks = cluster.tasks(workers.front().job);
  const auto found = tasks.find(workers.front().index);
  return found == tasks.end() || parse_address(found->second).port == 0 ? "" : found->second;
}

Identity evaluator(const Task& task, std::string_view source) {
  Identity identity;
  identity.task = task;
  identity.is_chief = false;
  identity.is_evaluator = true;
  identity.source = source;
  return identity;
}

}  // namespace

bool is_server_job(std::string_view job) { return job == "ps" || job == "parameter_server"; }

bool has_servers(const ClusterSpec& cluster) { return !servers_of(cluster).empty(); }

std::vector<Task> workers_of(const ClusterSpec& cluster) {
  std::vector<Task> workers;
  for (const std::string first : {"chief", "master"}) {
    if (cluster.has_job(first)) append_tasks(cluster, first, workers);
  }
  for (const std::string& job : cluster.jobs()) {
    if (!comes_first(job) && !is_server_job(job) && job != kEvaluator) append_tasks(cluster, job, workers);
  }
  return workers;
}

// If the launcher provides no addresses, only the number of the other workers is known.
std::vector<Task> workers_of(const Identity& identity) {
  if (!identity.cluster.empty()) return workers_of(identity.cluster);
  if (identity.membership.world == 1) return {identity.task};
  std::vector<Task> workers;
  for (int rank = 0; rank < identity.membership.world; ++rank)
    workers.push_back({.job = identity.task.job, .index = rank});
  return workers;
}

std::vector<Task> servers_of(const ClusterSpec& cluster) {
  std::vector<Task> servers;
  for (const std::string& job : cluster.jobs()) {
    if (is_server_job(job)) append_tasks(cluster, job, servers);
  }
  return servers;
}

std::string name_with_address(const ClusterSpec& cluster, const Task& task) {
  const auto& tasks = cluster.tasks(task.job);
  const auto found = tasks.find(task.index);
  return found == tasks.end() ? task.short_name() : fmt::format("{} ({})", task.short_name(), found->second);
}

bool is_on_same_host(const ClusterSpec& cluster, const Task& one, const Task& other) {
  const std::string host = host_of(cluster, one);
  return !host.empty() && host == host_of(cluster, other);
}

Identity identity_in(const ClusterSpec& cluster, const Task& task, std::string_view source) {
  require_no_misspelt_job(cluster);
  if (task.job == kEvaluator) return evaluator(task, source);
  cluster.address(task.job, task.index);  // throws if there is no such task
  Identity identity;
  identity.task = task;
  identity.cluster = cluster.without(kEvaluator);
  identity.source = source;
  const std::vector<Task> workers = workers_of(cluster);
  identity.board_address = meeting_place(cluster, workers);
  if (is_server_job(task.job)) {
    std::vector<Task> job;
    append_tasks(cluster, task.job, job);
    stand(cluster, job, task, identity.membership);
    identity.membership.world = static_cast<int>(workers.size());
    identity.is_chief = false;
  } else {
    stand(cluster, workers, task, identity.membership);
    identity.membership.world = static_cast<int>(workers.size());
    identity.is_chief = identity.membership.rank == 0;
  }
  return identity;
}

}  // namespace tutti
