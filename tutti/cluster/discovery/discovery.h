#pragma once

#include <optional>
#include <string>

#include "tutti/base/config.h"
#include "tutti/base/environment.h"
#include "tutti/cluster/identity.h"

// One function per launcher, in the order in which discover() calls them. Each returns nullopt if its
// launcher did not start this process, and throws InvalidArgument if it did, but its variables are incomplete
// or contradictory.
namespace tutti::discovery {

// --cluster_spec, --job_name and --task_index. Job and index may be omitted if there is only one.
std::optional<Identity> from_flags(const RunConfig& config);

// The text of TF_CONFIG: {"cluster": {"chief": [...], "worker": [...], "ps": [...]}, "task": {"type":
// "worker", "index": 0}}; "" if there is none. At most one chief, or master, which is its older name.
// Orchestrators set it without knowing Tutti, and may add keys. Without a cluster, the process is alone, and
// keys that are not known are errors.
std::optional<Identity> from_tf_config(const std::string& text);

// RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT: set by torchrun, and in pods of
// PyTorch operators, which omit the local pair because each pod has one process.
std::optional<Identity> from_torchrun(const Environment& environment);

// OMPI_COMM_WORLD_*: Open MPI 4 and 5.
std::optional<Identity> from_open_mpi(const Environment& environment);

// PMI_RANK, PMI_SIZE: MPICH, Intel MPI and relatives, also under `srun --mpi=pmi2`.
std::optional<Identity> from_pmi(const Environment& environment);

// PMIX_RANK, from a PMIx launcher other than Open MPI's. The variables do not contain the size of the world:
// a program would have to ask the PMIx server. So this works under `srun --mpi=pmix`, where Slurm's variables
// contain the size, and is an error elsewhere.
std::optional<Identity> from_pmix(const Environment& environment);

// The variables of a step that srun started. The shell of salloc and the script of sbatch have some of them
// too, but are not tasks.
std::optional<Identity> from_slurm(const Environment& environment);

}  // namespace tutti::discovery
