#include <climits>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/error.h"
#include "tutti/cluster/discovery/discovery.h"
#include "tutti/cluster/roles.h"

namespace tutti::discovery {
namespace {

std::string chosen_job(const RunConfig& config, const ClusterSpec& cluster) {
  if (!config.cluster.job.empty()) return config.cluster.job;
  if (cluster.jobs().size() == 1) return cluster.jobs().front();
  fail(ErrorKind::InvalidArgument,
       "--cluster_spec names the jobs {}: select the job of this task with --job_name",
       fmt::join(cluster.jobs(), ", "));
}

int chosen_index(const RunConfig& config, const ClusterSpec& cluster, const std::string& job) {
  if (config.cluster.task) {
    if (*config.cluster.task < 0 || *config.cluster.task > INT_MAX) {
      fail(ErrorKind::InvalidArgument, "--task_index {} is not a task index", *config.cluster.task);
    }
    return static_cast<int>(*config.cluster.task);
  }
  if (job == "evaluator" && !cluster.has_job(job)) return 0;
  if (cluster.num_tasks(job) == 1) return cluster.task_indices(job).front();
  fail(ErrorKind::InvalidArgument,
       "--cluster_spec gives the job '{}' {} tasks: select this task with --task_index", job,
       cluster.num_tasks(job));
}

}  // namespace

std::optional<Identity> from_flags(const RunConfig& config) {
  if (config.cluster.spec.empty()) {
    if (!config.cluster.job.empty() || config.cluster.task) {
      fail(ErrorKind::InvalidArgument,
           "{} selects a task of a cluster, but --cluster_spec, which describes the cluster, is not given",
           config.cluster.job.empty() ? fmt::format("--task_index {}", *config.cluster.task)
                                      : fmt::format("--job_name '{}'", config.cluster.job));
    }
    return std::nullopt;
  }
  const ClusterSpec cluster = ClusterSpec::parse(config.cluster.spec);
  if (cluster.empty()) {
    fail(ErrorKind::InvalidArgument, "--cluster_spec '{}' does not name any task", config.cluster.spec);
  }
  const std::string job = chosen_job(config, cluster);
  return identity_in(cluster, {.job = job, .index = chosen_index(config, cluster, job)}, "flags");
}

}  // namespace tutti::discovery
