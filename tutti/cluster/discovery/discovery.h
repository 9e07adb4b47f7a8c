#pragma once

#include <optional>

#include "tutti/base/environment.h"
#include "tutti/base/flags.h"
#include "tutti/cluster/identity.h"

// One function a launcher, in the order in which discover() asks them. Each returns nothing where its
// launcher did not start this process, and throws InvalidArgument where it did, but what it says is
// incomplete or contradicts itself.
namespace tutti::discovery {

// --cluster_spec, --job_name, --task_index. Job and index may be left out where there is only one.
std::optional<Identity> from_flags(const Flags& flags);

// TF_CONFIG: {"cluster": {"chief": [...], "worker": [...], "ps": [...]}, "task": {"type": "worker", "index":
// 0}}. At most one chief, or master as it was called before. Also from orchestrators that know nothing of
// Tutti.
std::optional<Identity> from_tf_config(const Environment& environment);

// RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT: torchrun, and pods of PyTorch
// operators (those leave out the local pair: one process a pod).
std::optional<Identity> from_torchrun(const Environment& environment);

// OMPI_COMM_WORLD_*: Open MPI 4 and 5.
std::optional<Identity> from_open_mpi(const Environment& environment);

// PMI_RANK, PMI_SIZE: MPICH, Intel MPI and others of that family, also under `srun --mpi=pmi2`.
std::optional<Identity> from_pmi(const Environment& environment);

// PMIX_RANK, from a PMIx launcher that is not Open MPI's. The variables do not hold the size of the world (a
// program asks the PMIx server for it), so this works under `srun --mpi=pmix`, where Slurm's variables do,
// and is an error elsewhere.
std::optional<Identity> from_pmix(const Environment& environment);

// The variables of a step that srun started. The shell of salloc and the script of sbatch have some of them
// as well, and are no tasks.
std::optional<Identity> from_slurm(const Environment& environment);

}  // namespace tutti::discovery
