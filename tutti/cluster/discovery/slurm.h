#pragma once

#include <string>
#include <vector>

#include "tutti/base/environment.h"
#include "tutti/cluster/discovery/launcher_variables.h"
#include "tutti/cluster/identity.h"

namespace tutti::discovery {

// Returns true if srun started this process as a task of a step. The variables of the task may be incomplete.
bool is_slurm_task(const Environment& environment);

// Returns the host of each task of this step, by rank; {} unless each node has one task.
std::vector<std::string> slurm_hosts(const Environment& environment);

// Returns the identity according to Slurm, for a process interface under srun that provides only the rank
// (PMIx), or rank and world (PMI). Throws InvalidArgument if one of the named variables is set and
// contradicts Slurm's.
Identity from_slurm_as(const Environment& environment, const LauncherVariables& variables,
                       const StandingNames& names);

}  // namespace tutti::discovery
