#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/base/config.h"
#include "tutti/base/environment.h"
#include "tutti/cluster/cluster_spec.h"

namespace tutti {

// A process with a role: "/job:worker/task:2".
struct Task {
  std::string job = "worker";
  int index = 0;

  std::string name() const { return "/job:" + job + "/task:" + std::to_string(index); }
  std::string short_name() const { return job + "/" + std::to_string(index); }
  bool operator==(const Task&) const = default;
};

// The position of a worker among the live workers, as of one numbered agreement (epoch) on who is alive.
// Ranks and worlds may change with the epoch.
struct Membership {
  uint64_t epoch = 0;
  int rank = 0;
  int world = 1;
  int local_rank = 0;
  int local_world = 1;
  std::vector<int> workers = {};  // by rank: the index among the workers of the job; empty: the rank itself
};

// The result of discover(). For servers and evaluators, which have no worker rank, see roles.h.
struct Identity {
  Task task;
  Membership membership;
  ClusterSpec cluster;                 // empty if the launcher provides no addresses (MPI, Slurm)
  bool is_chief = true;                // the worker of rank 0
  bool is_evaluator = false;           // not part of the cluster: rank 0 of its own world of one
  std::string source = "one process";  // the discovery method, for `tutti doctor` and error messages
  std::string
      board_address;  // HOST:PORT of the board of the ranks, or only its host (PMIx), or "" if unknown
  bool launcher_serves = false;  // the launcher, not the chief, listens there with a c10d TCPStore
  std::string launch;            // an id shared by all tasks of one start by `tutti run`; "" elsewhere
  std::string job;               // Slurm's name for the job and its step; "" elsewhere
  std::string secret;  // made by `tutti run` for the tasks of one start if the user gave none; else ""
  int attempt = 0;     // number of restarts by the launcher, whose store outlives them
  // With `tutti run --min`: HOST:PORT of its board with the list of the members (comm/members.h), else "";
  // and how often it had started this worker before.
  std::string members_board;
  int life = 0;
};

// The variables in which `tutti run` passes launch, secret, members_board and life of the identity.
inline constexpr const char* kLaunchVariable = "_TUTTI_LAUNCH";
inline constexpr const char* kSecretVariable = "_TUTTI_SECRET";
inline constexpr const char* kMembersVariable = "_TUTTI_MEMBERS";
inline constexpr const char* kLifeVariable = "_TUTTI_LIFE";

// Tries, in this order: the cluster in the config, TF_CONFIG (its text in the config, else the variable),
// torchrun, Open MPI, MPICH/PMI, PMIx, Slurm; else one process. The first method that finds any of its
// variables decides. If its information is incomplete or contradictory, throws an InvalidArgument that quotes
// it. Ranks come from the launcher, or from the cluster: chief (or master) first, then the workers. See
// discovery/.
Identity discover(const RunConfig& config, const Environment& environment);

}  // namespace tutti
