#pragma once

#include <string>

#include "tutti/base/environment.h"
#include "tutti/cluster/discovery/launcher_variables.h"
#include "tutti/cluster/identity.h"

namespace tutti::discovery {

// Whether srun started this process as a task of a step.
bool is_slurm_task(const Environment& environment);

// What Slurm says, for a process interface (PMI, PMIx) under srun that gives the rank, PMI the world too, and
// no more. What the named variables hold and Slurm says have to be the same; one that is not set has nothing
// to say.
Identity from_slurm_as(const Environment& environment, const LauncherVariables& variables,
                       const StandingNames& names);

}  // namespace tutti::discovery
