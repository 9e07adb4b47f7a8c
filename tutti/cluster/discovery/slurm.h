#pragma once

#include <string>

#include "tutti/base/environment.h"
#include "tutti/cluster/discovery/launcher_variables.h"
#include "tutti/cluster/identity.h"

namespace tutti::discovery {

// Whether srun started this process as a task of a step.
bool is_slurm_task(const Environment& environment);

// What Slurm says, for a process interface (PMI, PMIx) under srun that gives the rank and no more. The rank
// in `rank_name` and Slurm's have to be the same.
Identity from_slurm_as(const Environment& environment, const LauncherVariables& variables,
                       const std::string& rank_name);

}  // namespace tutti::discovery
