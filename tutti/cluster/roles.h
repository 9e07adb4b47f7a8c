#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tutti/cluster/cluster_spec.h"
#include "tutti/cluster/identity.h"

namespace tutti {

// Jobs have any name; these few say what their tasks do.
bool is_server_job(std::string_view job);  // "ps", "parameter_server"

// Whether one of the cluster's jobs holds parameters for the workers.
bool has_servers(const ClusterSpec& cluster);

// The workers in the order of their ranks: chief, master, then every other job that is not a server, as
// named.
std::vector<Task> workers_of(const ClusterSpec& cluster);
std::vector<Task> servers_of(const ClusterSpec& cluster);

// What a task of a cluster is. A worker's rank is its place in workers_of(); the chief is rank 0. A server
// stands outside that row: its rank is its index in its job, its world the number of workers, and its local
// world the tasks of its own job on its host. Tasks are on one host where their addresses name one. Where the
// cluster leaves out some indices, the ranks are those of a cluster without gaps. A task "evaluator" needs no
// address. It stands alone: no cluster, rank 0 in a world of one, not the chief. InvalidArgument where the
// cluster has no such task.
Identity identity_in(const ClusterSpec& cluster, const Task& task, std::string_view source);

}  // namespace tutti
