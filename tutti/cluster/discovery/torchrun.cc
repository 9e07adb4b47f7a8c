#include "tutti/base/address.h"
#include "tutti/base/error.h"
#include "tutti/cluster/discovery/discovery.h"
#include "tutti/cluster/discovery/launcher_variables.h"

namespace tutti::discovery {
namespace {

constexpr const char* kTorchrun = "torchrun";
const StandingNames kNames = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};

// Scripts for srun and mpirun often export WORLD_SIZE, LOCAL_RANK and MASTER_ADDR themselves and leave the
// rank to the launcher.
bool another_launcher_gives_the_rank(const LauncherVariables& variables) {
  return !variables.first_set({"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_STEP_ID"}).empty();
}

std::string board_address(const LauncherVariables& variables) {
  const auto host = variables.text("MASTER_ADDR");
  const auto port = variables.number("MASTER_PORT");
  if (!host && !port) return "";
  if (!host || !port) {
    variables.fail_with(variables.quote("MASTER_ADDR") + " and " + variables.quote("MASTER_PORT") +
                        " must be set together");
  }
  const bool ipv6 = host->find(':') != std::string::npos && !host->starts_with('[');
  const std::string text = (ipv6 ? "[" + *host + "]" : *host) + ":" + std::to_string(*port);
  try {
    return to_string(parse_address(text));
  } catch (const Error& error) {
    variables.fail_with(variables.quote("MASTER_ADDR") + ", " + variables.quote("MASTER_PORT") + ": " +
                        error.what());
  }
}

Membership standing_in_torchrun(const LauncherVariables& variables) {
  if (variables.has(kNames.local_rank) || variables.has(kNames.local_world))
    return read_standing(variables, kNames);
  Membership membership;
  const std::string witness = variables.first_set({kNames.rank, kNames.world});
  membership.rank = variables.number_with(kNames.rank, witness);
  membership.world = variables.number_with(kNames.world, witness);
  check_standing(variables, kNames, membership);
  return membership;
}

}  // namespace

std::optional<Identity> from_torchrun(const Environment& environment) {
  const LauncherVariables variables(environment, kTorchrun);
  if (!any_is_set(variables, kNames)) return std::nullopt;
  if (!variables.has(kNames.rank) && another_launcher_gives_the_rank(variables)) return std::nullopt;
  Identity identity = launched_worker(standing_in_torchrun(variables), kTorchrun);
  identity.board_address = board_address(variables);
  identity.launcher_serves = variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  identity.attempt = variables.number("TORCHELASTIC_RESTART_COUNT").value_or(0);
  return identity;
}

}  // namespace tutti::discovery
