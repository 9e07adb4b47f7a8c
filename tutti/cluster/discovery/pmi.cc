#include "tutti/cluster/discovery/discovery.h"
#include "tutti/cluster/discovery/launcher_variables.h"
#include "tutti/cluster/discovery/slurm.h"

namespace tutti::discovery {
namespace {

constexpr const char* kPmi = "MPICH (PMI)";

StandingNames names_in(const LauncherVariables& variables) {
  // The first pair is set by Hydra (MPICH, Intel MPI), the second by Cray's launcher.
  const bool hydra = !variables.first_set({"MPI_LOCALRANKID", "MPI_LOCALNRANKS"}).empty();
  return {"PMI_RANK", "PMI_SIZE", hydra ? "MPI_LOCALRANKID" : "PMI_LOCAL_RANK",
          hydra ? "MPI_LOCALNRANKS" : "PMI_LOCAL_SIZE"};
}

}  // namespace

std::optional<Identity> from_pmi(const Environment& environment) {
  const LauncherVariables variables(environment, kPmi);
  const StandingNames names = names_in(variables);
  if (!any_is_set(variables, names)) return std::nullopt;
  if (variables.first_set({names.local_rank, names.local_world}).empty() && is_slurm_task(environment)) {
    return from_slurm_as(environment, variables, names);
  }
  return launched_worker(read_standing(variables, names), kPmi);
}

std::optional<Identity> from_open_mpi(const Environment& environment) {
  constexpr const char* kOpenMpi = "Open MPI";
  const StandingNames names = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                               "OMPI_COMM_WORLD_LOCAL_SIZE"};
  const LauncherVariables variables(environment, kOpenMpi);
  if (!any_is_set(variables, names)) return std::nullopt;
  return launched_worker(read_standing(variables, names), kOpenMpi);
}

std::optional<Identity> from_pmix(const Environment& environment) {
  const LauncherVariables variables(environment, "PMIx");
  if (!variables.has("PMIX_RANK")) return std::nullopt;
  if (is_slurm_task(environment)) return from_slurm_as(environment, variables, {.rank = "PMIX_RANK"});
  variables.fail_with(
      variables.quote("PMIX_RANK") +
      " is set, but PMIx does not give the number of tasks, and no variable of another launcher does");
}

}  // namespace tutti::discovery
