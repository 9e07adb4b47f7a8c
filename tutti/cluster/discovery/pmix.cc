#include "tutti/cluster/discovery/discovery.h"
#include "tutti/cluster/discovery/launcher_variables.h"
#include "tutti/cluster/discovery/slurm.h"

namespace tutti::discovery {

std::optional<Identity> from_pmix(const Environment& environment) {
  const LauncherVariables variables(environment, "PMIx");
  if (!variables.has("PMIX_RANK")) return std::nullopt;
  if (is_slurm_task(environment)) return from_slurm_as(environment, variables, {.rank = "PMIX_RANK"});
  variables.fail_with(
      variables.quote("PMIX_RANK") +
      " is set, but PMIx does not give the number of tasks, and no variable of another launcher does");
}

}  // namespace tutti::discovery
