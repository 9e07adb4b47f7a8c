#include "tutti/cluster/discovery/slurm.h"

#include <iterator>

#include <fmt/format.h>

#include "tutti/base/address.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/cluster/discovery/discovery.h"
#include "tutti/cluster/discovery/host_list.h"

namespace tutti::discovery {
namespace {

constexpr const char* kSlurm = "Slurm";

// Step numbers from here on are not steps of srun: they stand for the batch script, the shell of salloc and
// similar.
constexpr int64_t kFirstSpecialStep = 0xfffffff0;

// Returns the newer name of the step's variable, or the older one, or the name of the job's variable, which
// has the same value inside a step.
std::string step_name(const LauncherVariables& variables, const std::string& name) {
  const std::string found = variables.first_set({"SLURM_STEP_" + name, "SLURM_" + name});
  return found.empty() ? "SLURM_STEP_" + name : found;
}

std::string world_name(const LauncherVariables& variables) {
  const std::string found = variables.first_set({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"});
  return found.empty() ? "SLURM_STEP_NUM_TASKS" : found;
}

// Returns the number of tasks on this node from a list that must add up to the whole world.
int tasks_on_this_node(const LauncherVariables& variables, const Membership& membership,
                       const std::string& name) {
  const auto text = variables.text(name);
  if (!text) variables.fail_with("SLURM_PROCID is set, but " + name + " is not");
  const int node = variables.number_with("SLURM_NODEID", "SLURM_PROCID");
  const auto runs = parse_tasks_per_node(*text);
  if (!runs) variables.fail_with(variables.quote(name) + " is not a list such as 2(x3),1");
  int64_t tasks = 0;
  int64_t nodes = 0;
  int here = 0;
  for (const auto& run : *runs) {
    if (node >= nodes && node < nodes + run.nodes) here = run.tasks;
    nodes += run.nodes;
    tasks += int64_t{run.nodes} * run.tasks;
  }
  if (node >= nodes)
    variables.fail_with(variables.quote("SLURM_NODEID") + " is not in " + variables.quote(name));
  if (tasks != membership.world) {
    variables.fail_with(variables.quote(name) + " does not add up to " +
                        variables.quote(world_name(variables)));
  }
  return here;
}

// Returns the nodes of the step. The first has the chief: srun puts it there unless told otherwise.
std::vector<std::string> nodes_of(const LauncherVariables& variables) {
  const std::string name = step_name(variables, "NODELIST");
  const auto list = variables.text(name);
  if (!list) return {};
  try {
    return expand_host_list(*list);
  } catch (const Error& error) {
    variables.fail_with(name + ": " + error.what());
  }
}

// srun chooses no port. Every task computes the same port from the job and the step, so that concurrent steps
// mostly have different ports.
std::string meeting_place(const LauncherVariables& variables) {
  const std::vector<std::string> nodes = nodes_of(variables);
  const std::string host = nodes.empty() ? "" : nodes.front();
  const auto job = variables.number(variables.first_set({"SLURM_JOB_ID", "SLURM_JOBID"}));
  if (host.empty() || !job) return host;
  const int step = variables.number(variables.first_set({"SLURM_STEP_ID", "SLURM_STEPID"})).value_or(0);
  constexpr int64_t kFirstPort = 20000;
  constexpr int64_t kPorts = 10000;
  return to_string(Address{host, static_cast<int>(kFirstPort + (int64_t{*job} * 37 + step) % kPorts)});
}

std::string name_of_job(const LauncherVariables& variables) {
  const auto number = [&](const std::string& name) { return variables.text(name).value_or("?"); };
  return fmt::format("Slurm job {} step {}", number(variables.first_set({"SLURM_JOB_ID", "SLURM_JOBID"})),
                     number(variables.first_set({"SLURM_STEP_ID", "SLURM_STEPID"})));
}

Membership standing_in_slurm(const LauncherVariables& variables) {
  const std::string tasks_name = step_name(variables, "TASKS_PER_NODE");
  const StandingNames names = {"SLURM_PROCID", world_name(variables), "SLURM_LOCALID", tasks_name};
  Membership membership;
  membership.rank = variables.number_with(names.rank, variables.first_set({"SLURM_LOCALID", "SLURM_NODEID"}));
  membership.world = variables.number_with(names.world, names.rank);
  membership.local_rank = variables.number_with(names.local_rank, names.rank);
  membership.local_world = tasks_on_this_node(variables, membership, tasks_name);
  check_standing(variables, names, membership);
  return membership;
}

}  // namespace

// The variables of a step are also set in shells that srun's parent has started; the variables of a task are
// not.
bool is_slurm_task(const Environment& environment) {
  const LauncherVariables variables(environment, kSlurm);
  const auto step = variables.text(variables.first_set({"SLURM_STEP_ID", "SLURM_STEPID"}));
  if (!step || variables.first_set({"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"}).empty()) return false;
  const auto number = parse_int(*step);
  return !number || *number < kFirstSpecialStep;
}

std::optional<Identity> from_slurm(const Environment& environment) {
  if (!is_slurm_task(environment)) return std::nullopt;
  const LauncherVariables variables(environment, kSlurm);
  Identity identity = launched_worker(standing_in_slurm(variables), kSlurm);
  identity.board_address = meeting_place(variables);
  identity.job = name_of_job(variables);
  return identity;
}

std::vector<std::string> slurm_hosts(const Environment& environment) {
  const LauncherVariables variables(environment, kSlurm);
  std::vector<std::string> nodes = nodes_of(variables);
  if (std::ssize(nodes) != standing_in_slurm(variables).world) nodes.clear();
  return nodes;
}

Identity from_slurm_as(const Environment& environment, const LauncherVariables& variables,
                       const StandingNames& names) {
  Identity identity = *from_slurm(environment);
  const auto agree = [&](const std::string& name, int value, const std::string& slurm_name) {
    if (variables.number(name).value_or(value) == value) return;
    variables.fail_with(variables.quote(name) + " and " + variables.quote(slurm_name) +
                        " contradict each other");
  };
  agree(names.rank, identity.membership.rank, "SLURM_PROCID");
  agree(names.world, identity.membership.world, world_name(variables));
  return identity;
}

}  // namespace tutti::discovery
