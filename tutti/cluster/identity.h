#pragma once

#include <cstdint>
#include <string>

#include "tutti/base/environment.h"
#include "tutti/base/flags.h"
#include "tutti/cluster/cluster_spec.h"

namespace tutti {

// One process with a role: "/job:worker/task:2".
struct Task {
  std::string job = "worker";
  int index = 0;

  std::string name() const { return "/job:" + job + "/task:" + std::to_string(index); }
  std::string short_name() const { return job + "/" + std::to_string(index); }
  bool operator==(const Task&) const = default;
};

// Where a worker stands among the workers, as of one numbered agreement on who is alive. Ranks and worlds
// change with it.
struct Membership {
  uint64_t epoch = 0;
  int rank = 0;
  int world = 1;
  int local_rank = 0;
  int local_world = 1;
};

// What discovery finds out. For servers and evaluators, which stand outside the row of workers, see roles.h.
struct Identity {
  Task task;
  Membership membership;
  ClusterSpec cluster;                 // empty where the launcher names no addresses (MPI, Slurm)
  bool is_chief = true;                // rank 0
  bool is_evaluator = false;           // stands outside the cluster: rank 0 of its own world of one
  std::string source = "one process";  // which discovery answered, for `tutti doctor` and for error messages
  std::string
      master_address;  // HOST:PORT of rank 0, or its host alone (PMIx), or "" where the launcher names none
  bool launcher_serves = false;  // somebody else than rank 0 listens there already, with a c10d TCPStore
  std::string launch;  // the same for all tasks of one start by `tutti run`, and for no others; "" elsewhere
  int attempt = 0;     // how often the launcher has started all of them before: what it serves outlives them
};

// What `tutti run` tells its tasks in it (Identity::launch).
inline constexpr const char* kLaunchVariable = "_TUTTI_LAUNCH";

// Asks, in this order: flags, TF_CONFIG, torchrun, Open MPI, MPICH/PMI, PMIx, Slurm; else one process. The
// first that has anything to say decides; where what it says is incomplete or contradicts itself, an
// InvalidArgument quotes it. Ranks come from the launcher, or from the cluster: chief (or master) first, then
// the workers. See discovery/.
Identity discover(const Flags& flags, const Environment& environment);

}  // namespace tutti
