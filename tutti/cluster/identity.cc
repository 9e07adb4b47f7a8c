#include "tutti/cluster/identity.h"

#include "tutti/cluster/discovery/discovery.h"

namespace tutti {
namespace {

Identity ask_all(const Flags& flags, const Environment& environment) {
  if (const auto found = discovery::from_flags(flags)) return *found;
  if (const auto found = discovery::from_tf_config(environment)) return *found;
  if (const auto found = discovery::from_torchrun(environment)) return *found;
  if (const auto found = discovery::from_open_mpi(environment)) return *found;
  if (const auto found = discovery::from_pmi(environment)) return *found;
  if (const auto found = discovery::from_pmix(environment)) return *found;
  if (const auto found = discovery::from_slurm(environment)) return *found;
  return {};
}

}  // namespace

Identity discover(const Flags& flags, const Environment& environment) {
  Identity identity = ask_all(flags, environment);
  identity.launch = environment.get(kLaunchVariable).value_or("");
  return identity;
}

}  // namespace tutti
