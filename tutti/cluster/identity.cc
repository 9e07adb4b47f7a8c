#include "tutti/cluster/identity.h"

#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/cluster/discovery/discovery.h"

namespace tutti {
namespace {

// `tutti run` passes the task in TUTTI_* variables. Parsing the command line reads them into the config; a
// program that fills in its RunConfig itself has not read them.
RunConfig with_variables(RunConfig config, const Environment& environment) {
  if (!config.cluster.spec.empty() || !config.cluster.job.empty() || config.cluster.task) return config;
  config.cluster.spec = environment.get("TUTTI_CLUSTER_SPEC").value_or("");
  config.cluster.job = environment.get("TUTTI_JOB_NAME").value_or("");
  if (const auto index = environment.get("TUTTI_TASK_INDEX")) {
    config.cluster.task = parse_int(*index);
    if (!config.cluster.task)
      fail(ErrorKind::InvalidArgument, "TUTTI_TASK_INDEX: '{}' is not a whole number", *index);
  }
  return config;
}

// A program may set the text of TF_CONFIG in code.
std::string tf_config_of(const RunConfig& config, const Environment& environment) {
  if (!config.cluster.tf_config.empty()) return config.cluster.tf_config;
  return environment.get("TF_CONFIG").value_or("");
}

Identity ask_all(const RunConfig& given, const Environment& environment) {
  const RunConfig config = with_variables(given, environment);
  if (const auto found = discovery::from_flags(config)) return *found;
  if (const auto found = discovery::from_tf_config(tf_config_of(config, environment))) return *found;
  if (const auto found = discovery::from_torchrun(environment)) return *found;
  if (const auto found = discovery::from_open_mpi(environment)) return *found;
  if (const auto found = discovery::from_pmi(environment)) return *found;
  if (const auto found = discovery::from_pmix(environment)) return *found;
  if (const auto found = discovery::from_slurm(environment)) return *found;
  return {};
}

}  // namespace

Identity discover(const RunConfig& config, const Environment& environment) {
  Identity identity = ask_all(config, environment);
  identity.launch = environment.get(kLaunchVariable).value_or("");
  identity.secret = environment.get(kSecretVariable).value_or("");
  identity.members_board = environment.get(kMembersVariable).value_or("");
  identity.life = static_cast<int>(parse_int(environment.get(kLifeVariable).value_or("")).value_or(0));
  return identity;
}

}  // namespace tutti
