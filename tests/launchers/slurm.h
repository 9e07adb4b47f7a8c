#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/launchers/hosts.h"
#include "tests/tool.h"

namespace tutti::testing {

// A real Slurm: munged, slurmctld and slurmd, with their keys, sockets and state in a folder of the test and
// at ports of their own. All of it ends with this object.
class Slurm {
 public:
  // Says which nodes the cluster has.
  enum class Nodes {
    ThisMachine,  // one node with 4 CPUs
    TwoHosts,     // two simulated hosts, east and west, with 4 CPUs and two GPUs each; the GPUs do not exist
  };

  explicit Slurm(Nodes nodes);
  ~Slurm();
  Slurm(const Slurm&) = delete;
  Slurm& operator=(const Slurm&) = delete;

  // Returns the variable that the commands of Slurm need.
  std::string environment() const { return "SLURM_CONF=" + (folder_ / "slurm.conf"); }
  // Returns the words to prefix to a command so that it runs where a user of the cluster works.
  Words here() const { return hosts_ ? hosts_->east().here() : Words{}; }
  // Runs one of Slurm's commands, such as sinfo.
  ProgramResult run(const Words& command, const Words& environment = {}) const;
  // Waits until all nodes can be used. Returns false after a minute.
  bool comes_up() const;

  // Returns why this machine cannot run it, or "".
  static std::string why_not(Nodes nodes);

 private:
  class Daemon;

  std::string configuration() const;
  std::string nodes() const;
  void start_nodes_on_hosts();
  void start(const Words& where, const Words& command);

  const TestFolder folder_;
  std::unique_ptr<TwoHosts> hosts_;
  std::vector<std::unique_ptr<Daemon>> daemons_;
};

}  // namespace tutti::testing
