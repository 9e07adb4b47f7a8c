#pragma once

#include <optional>
#include <string>

#include "tools/launch/hosts.h"
#include "tools/launch/launcher.h"
#include "tutti/base/environment.h"

namespace tutti {

// The flags of `tutti run` that name the hosts of a job.
struct NodeFlags {
  std::optional<int> count = {};  // --nnodes
  std::optional<int> rank = {};   // --node-rank
  std::string rendezvous = "";    // HOST:PORT of the first host, or HOST:PORT,HOST:PORT,... of all
};

// Finds the hosts of a job on each of which something has started a launcher. They are named by the flags; in
// a pod of an indexed Kubernetes job, JOB_COMPLETION_INDEX takes the place of --node-rank. Without --nnodes
// they are the tasks of srun. Returns nullopt for a single host. Throws InvalidArgument if something is
// missing or contradictory.
std::optional<NodeOptions> find_nodes(const NodeFlags& flags, const Environment& environment);

// The hosts of a TF_CONFIG of which this launcher is one. Throws InvalidArgument if it names servers, which
// are on the first host here (--ps).
std::optional<NodeOptions> nodes_of(const JobHosts& hosts);

}  // namespace tutti
