#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tutti/base/environment.h"
#include "tutti/cluster/cluster_spec.h"
#include "tutti/cluster/identity.h"

namespace tutti {

// What TF_CONFIG tells a launcher: a cluster of one task a host, with a launcher on each that starts as many
// as its host has GPUs. Every launcher makes the same larger cluster of them. Immutable.
class Hosts {
 public:
  // Nothing where TF_CONFIG names no cluster, or is not there. InvalidArgument where it does not fit, as
  // discovery::from_tf_config() finds, and where it leaves out a host or the port of the first.
  static std::optional<Hosts> from(const Environment& environment);

  // The hosts: workers in the order of their ranks, then servers. A server is one process whatever its host
  // has.
  const std::vector<Task>& row() const { return row_; }
  // Which of them this is; nothing for an evaluator, which stands outside.
  std::optional<size_t> own() const { return own_; }
  bool is_server(size_t host) const;
  // "worker/1 (node7:2222)".
  std::string name_of(size_t host) const;
  // HOST:PORT of the first.
  const std::string& first_address() const;
  // The same for all launchers that have been told of the same hosts, and for no others.
  std::string fingerprint() const;

  // The cluster with `workers[i]` tasks on host i. The first keeps its name and address, the others follow it
  // in rank, with ports counted up from there past those that are taken; a chief's others are workers, since
  // there can be one chief.
  struct Spread {
    ClusterSpec cluster;
    std::vector<std::vector<Task>> tasks;  // by host
  };
  Spread spread(const std::vector<int>& workers) const;
  // TF_CONFIG for a task of the larger cluster; all else in it stays.
  std::string config_for(const ClusterSpec& cluster, const Task& task) const;

 private:
  Hosts() = default;

  std::string config_;
  ClusterSpec cluster_;
  std::vector<Task> row_;
  std::optional<size_t> own_;
};

}  // namespace tutti
