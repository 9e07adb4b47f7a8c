#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tutti/base/environment.h"
#include "tutti/cluster/cluster_spec.h"
#include "tutti/cluster/identity.h"

namespace tutti {

// The tasks of a job, on its hosts.
struct Spread {
  ClusterSpec cluster;
  std::vector<std::vector<Task>> tasks;  // by host
  int store_port = 0;  // of the first host, for PyTorch's store; 0: that of the first worker
};

// The hosts of a job, from TF_CONFIG, which names one task per host. The launcher on each host starts as many
// tasks as the host has GPUs, and all launchers compute the same larger cluster of these tasks. Immutable.
class JobHosts {
 public:
  // nullopt if TF_CONFIG is not set or names no cluster. InvalidArgument if discovery::from_tf_config() finds
  // an error, or if a host or the port of the first host is missing.
  static std::optional<JobHosts> from(const Environment& environment);

  // The hosts: workers in the order of their ranks, then servers. A server is always one process.
  const std::vector<Task>& row() const { return row_; }
  // The index of this host; nullopt for an evaluator, which is not part of the cluster.
  std::optional<size_t> own_index() const { return own_; }
  bool is_server(size_t host) const;
  // Returns a name for messages, such as "worker/1 (node7:2222)".
  std::string name_of(size_t host) const;
  // HOST:PORT of a host.
  const std::string& address_of(size_t host) const;
  // Equal for two launchers exactly if their TF_CONFIGs name the same hosts.
  std::string fingerprint() const;

  // Returns the cluster with `workers[i]` tasks on host i. The first task of a host keeps its name and
  // address. The others follow it in rank and get the next free ports after its port; on the chief's host
  // they are workers, since there can be only one chief.
  Spread spread(const std::vector<int>& workers) const;
  // Returns the TF_CONFIG of a task of the larger cluster; its other entries stay as they are.
  std::string config_for(const ClusterSpec& cluster, const Task& task) const;

 private:
  JobHosts() = default;

  std::string config_;
  ClusterSpec cluster_;
  std::vector<Task> row_;
  std::optional<size_t> own_;
};

}  // namespace tutti
