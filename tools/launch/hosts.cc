#include "tools/launch/hosts.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tutti/base/address.h"
#include "tutti/base/check.h"
#include "tutti/base/file.h"
#include "tutti/base/hashes.h"
#include "tutti/base/json.h"
#include "tutti/cluster/discovery/discovery.h"
#include "tutti/cluster/roles.h"

namespace tutti {
namespace {

constexpr const char* kVariable = "TF_CONFIG";
constexpr int kLastPort = 65535;

std::vector<Task> row_of(const ClusterSpec& cluster) {
  std::vector<Task> row = workers_of(cluster);
  const std::vector<Task> servers = servers_of(cluster);
  row.insert(row.end(), servers.begin(), servers.end());
  return row;
}

void check_row(const ClusterSpec& cluster, const std::vector<Task>& row) {
  for (const Task& task : row) {
    if (!cluster.tasks(task.job).contains(task.index))
      fail(ErrorKind::InvalidArgument, "{}: \"cluster\" lacks {}; list every host", kVariable,
           task.short_name());
  }
  if (row.empty() || is_server_job(row.front().job))
    fail(ErrorKind::InvalidArgument, "{}: \"cluster\" has servers, but no workers: {}", kVariable,
         cluster.to_json());
  const std::string& first = cluster.address(row.front().job, row.front().index);
  if (parse_address(first).port == 0)
    fail(ErrorKind::InvalidArgument,
         "{}: the address of {}, '{}', needs a port, to which the launchers and later the workers connect",
         kVariable, row.front().short_name(), first);
}

// Assigns addresses that no task in the cluster has.
class Ports {
 public:
  explicit Ports(const ClusterSpec& cluster) {
    for (const std::string& job : cluster.jobs()) {
      for (const auto& [index, address] : cluster.tasks(job))
        taken_.insert(to_string(parse_address(address)));
    }
  }

  // Returns the address with the next free port. Port 0, which the task replaces itself, stays 0.
  std::string next(const std::string& text) {
    Address address = parse_address(text);
    if (address.port == 0) return to_string(address);
    do {
      if (++address.port > kLastPort)
        fail(ErrorKind::InvalidArgument,
             "{}: the other workers of a host get the ports after '{}', but no ports are left; give it a "
             "lower port",
             kVariable, text);
    } while (!taken_.insert(to_string(address)).second);
    return to_string(address);
  }

 private:
  std::set<std::string> taken_;
};

// Returns the job of a host's second worker.
std::string job_of_more(const std::vector<Task>& row, const Task& first) {
  if (first.job != "chief" && first.job != "master") return first.job;
  const auto other = std::find_if(row.begin(), row.end(), [&](const Task& task) {
    return task.job != first.job && !is_server_job(task.job);
  });
  return other == row.end() ? "worker" : other->job;
}

}  // namespace

std::optional<JobHosts> JobHosts::from(const Environment& environment) {
  const std::string config = environment.get(kVariable).value_or("");
  const std::optional<Identity> identity = discovery::from_tf_config(config);
  if (!identity || (identity->cluster.empty() && !identity->is_evaluator)) return std::nullopt;
  JobHosts hosts;
  hosts.config_ = config;
  if (identity->is_evaluator) return hosts;
  hosts.cluster_ = identity->cluster;
  hosts.row_ = row_of(hosts.cluster_);
  check_row(hosts.cluster_, hosts.row_);
  const auto own = std::find(hosts.row_.begin(), hosts.row_.end(), identity->task);
  TUTTI_CHECK(own != hosts.row_.end(), "no host has the task {}", identity->task.short_name());
  hosts.own_ = own - hosts.row_.begin();
  return hosts;
}

bool JobHosts::is_server(size_t host) const { return is_server_job(row_.at(host).job); }

std::string JobHosts::name_of(size_t host) const {
  return fmt::format("{} ({})", row_.at(host).short_name(), address_of(host));
}

const std::string& JobHosts::address_of(size_t host) const {
  return cluster_.address(row_.at(host).job, row_.at(host).index);
}

std::string JobHosts::fingerprint() const {
  Sha256 hash;
  // Hashes the hosts in the order of their ranks: TF_CONFIG may list the jobs in another order on every host.
  for (size_t host = 0; host < row_.size(); ++host) hash.update(as_bytes(name_of(host) + "\n"));
  return hash.hex();
}

Spread JobHosts::spread(const std::vector<int>& workers) const {
  TUTTI_CHECK(workers.size() == row_.size(), "{} numbers for {} hosts", workers.size(), row_.size());
  Ports ports(cluster_);
  ClusterSpec::Jobs jobs;
  Spread spread;
  const auto add = [&](const std::string& job, const std::string& address) {
    auto at = std::find_if(jobs.begin(), jobs.end(), [&](const auto& entry) { return entry.first == job; });
    if (at == jobs.end()) at = jobs.insert(jobs.end(), {job, {}});
    const int index = static_cast<int>(at->second.size());
    at->second.emplace(index, address);
    spread.tasks.back().push_back({.job = job, .index = index});
  };
  for (size_t host = 0; host < row_.size(); ++host) {
    const Task& first = row_[host];
    std::string address = cluster_.address(first.job, first.index);
    spread.tasks.emplace_back();
    add(first.job, address);
    for (int more = 1; more < workers[host]; ++more) {
      address = ports.next(address);
      add(job_of_more(row_, first), address);
    }
  }
  spread.cluster = ClusterSpec(std::move(jobs));
  return spread;
}

std::string JobHosts::config_for(const ClusterSpec& cluster, const Task& task) const {
  Json root = parse_json(config_, kVariable);
  root["cluster"] = parse_json(cluster.to_json(), "the cluster");
  root["task"]["type"] = task.job;
  root["task"]["index"] = task.index;
  return root.dump();
}

}  // namespace tutti
