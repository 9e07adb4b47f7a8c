#include "tutti/cluster/identity.h"

#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/cluster/discovery/discovery.h"

namespace tutti {
namespace {

// `tutti run` passes the task in TUTTI_* variables. Parsing the command line reads them into the flags; a
// program that fills in its Flags itself has not read them.
Flags with_variables(Flags flags, const Environment& environment) {
  if (!flags.cluster_spec.empty() || !flags.job_name.empty() || flags.task_index) return flags;
  flags.cluster_spec = environment.get("TUTTI_CLUSTER_SPEC").value_or("");
  flags.job_name = environment.get("TUTTI_JOB_NAME").value_or("");
  if (const auto index = environment.get("TUTTI_TASK_INDEX")) {
    flags.task_index = parse_int(*index);
    if (!flags.task_index)
      fail(ErrorKind::InvalidArgument, "TUTTI_TASK_INDEX: '{}' is not a whole number", *index);
  }
  return flags;
}

Identity ask_all(const Flags& given, const Environment& environment) {
  const Flags flags = with_variables(given, environment);
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
