#include <climits>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/error.h"
#include "tutti/cluster/discovery/discovery.h"
#include "tutti/cluster/roles.h"

namespace tutti::discovery {
namespace {

std::string chosen_job(const Flags& flags, const ClusterSpec& cluster) {
  if (!flags.job_name.empty()) return flags.job_name;
  if (cluster.jobs().size() == 1) return cluster.jobs().front();
  fail(ErrorKind::InvalidArgument,
       "--cluster_spec names the jobs {}: select the job of this task with --job_name",
       fmt::join(cluster.jobs(), ", "));
}

int chosen_index(const Flags& flags, const ClusterSpec& cluster, const std::string& job) {
  if (flags.task_index) {
    if (*flags.task_index < 0 || *flags.task_index > INT_MAX) {
      fail(ErrorKind::InvalidArgument, "--task_index {} is not a task index", *flags.task_index);
    }
    return static_cast<int>(*flags.task_index);
  }
  if (job == "evaluator" && !cluster.has_job(job)) return 0;
  if (cluster.num_tasks(job) == 1) return cluster.task_indices(job).front();
  fail(ErrorKind::InvalidArgument,
       "--cluster_spec gives the job '{}' {} tasks: select this task with --task_index", job,
       cluster.num_tasks(job));
}

}  // namespace

std::optional<Identity> from_flags(const Flags& flags) {
  if (flags.cluster_spec.empty()) {
    if (!flags.job_name.empty() || flags.task_index) {
      fail(ErrorKind::InvalidArgument,
           "{} selects a task of a cluster, but --cluster_spec, which describes the cluster, is not given",
           flags.job_name.empty() ? fmt::format("--task_index {}", *flags.task_index)
                                  : fmt::format("--job_name '{}'", flags.job_name));
    }
    return std::nullopt;
  }
  const ClusterSpec cluster = ClusterSpec::parse(flags.cluster_spec);
  if (cluster.empty()) {
    fail(ErrorKind::InvalidArgument, "--cluster_spec '{}' does not name any task", flags.cluster_spec);
  }
  const std::string job = chosen_job(flags, cluster);
  return identity_in(cluster, {.job = job, .index = chosen_index(flags, cluster, job)}, "flags");
}

}  // namespace tutti::discovery
