#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tutti/cluster/cluster_spec.h"
#include "tutti/cluster/identity.h"

namespace tutti {

// Any job name is allowed, but a few names determine the role of the tasks, and identity_in() refuses names
// that differ from one of these few only in the order of their letters.
bool is_server_job(std::string_view job);  // "ps", "parameter_server"

// Returns true if one of the cluster's jobs is a server job.
bool has_servers(const ClusterSpec& cluster);

// Returns the workers in the order of their ranks: chief, master, then all other jobs but servers and
// the evaluator, in the order of the specification.
std::vector<Task> workers_of(const ClusterSpec& cluster);
// Likewise; as many as there are if the launcher provides no addresses.
std::vector<Task> workers_of(const Identity& identity);
std::vector<Task> servers_of(const ClusterSpec& cluster);

// Returns "worker/1 (h:2224)", or only the name if this task does not know the address.
std::string name_with_address(const ClusterSpec& cluster, const Task& task);

// Returns true if the addresses of both tasks have the same host. A task without an address is on no host.
bool is_on_same_host(const ClusterSpec& cluster, const Task& one, const Task& other);

// Returns the identity of a task of a cluster. A worker's rank is its position in workers_of(); the chief is
// rank 0. A server is not a worker: its rank is its index in its job, its world the number of workers, and
// its local world the number of tasks of its own job on its host. Tasks are on the same host if their
// addresses have the same host. If indices have gaps, ranks are counted as if there were none. A task
// "evaluator" needs no address; it has no cluster, is rank 0 in a world of one, and not the chief. Throws
// InvalidArgument if the cluster has no such task.
Identity identity_in(const ClusterSpec& cluster, const Task& task, std::string_view source);

}  // namespace tutti
