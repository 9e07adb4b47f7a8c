#include "tutti/cluster/discovery/discovery.h"
#include "tutti/cluster/discovery/launcher_variables.h"

namespace tutti::discovery {

std::optional<Identity> from_open_mpi(const Environment& environment) {
  constexpr const char* kOpenMpi = "Open MPI";
  const StandingNames names = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                               "OMPI_COMM_WORLD_LOCAL_SIZE"};
  const LauncherVariables variables(environment, kOpenMpi);
  if (!any_is_set(variables, names)) return std::nullopt;
  return launched_worker(read_standing(variables, names), kOpenMpi);
}

}  // namespace tutti::discovery
