#include "tutti/cluster/discovery/launcher_variables.h"

#include <climits>

#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti::discovery {

std::string LauncherVariables::first_set(std::initializer_list<std::string> names) const {
  for (const std::string& name : names) {
    if (has(name)) return name;
  }
  return "";
}

std::optional<int> LauncherVariables::number(const std::string& name) const {
  const auto text = environment_.get(name);
  if (!text) return std::nullopt;
  const auto value = parse_int(*text);
  if (!value || *value < 0 || *value > INT_MAX)
    fail_with(quote(name) + " is not a whole number of 0 or more");
  return static_cast<int>(*value);
}

int LauncherVariables::number_with(const std::string& name, const std::string& witness) const {
  const auto value = number(name);
  if (!value) fail_with(quote(witness) + " is set, but " + name + " is not");
  return *value;
}

std::string LauncherVariables::quote(const std::string& name) const {
  const auto text = environment_.get(name);
  return text ? name + "='" + *text + "'" : name + " (not set)";
}

void LauncherVariables::fail_with(const std::string& what) const {
  fail(ErrorKind::InvalidArgument,
       "{}: {}. Start this process with the launcher, unset the launcher's variables, or identify this task "
       "with --cluster_spec, --job_name and --task_index",
       launcher_, what);
}

void check_standing(const LauncherVariables& variables, const StandingNames& names,
                    const Membership& membership) {
  const auto check_below = [&](int value, const std::string& name, int limit, const std::string& limit_name) {
    if (value < limit) return;
    variables.fail_with(variables.quote(name) + " must be less than " + variables.quote(limit_name));
  };
  check_below(membership.rank, names.rank, membership.world, names.world);
  check_below(membership.local_rank, names.local_rank, membership.local_world, names.local_world);
  if (membership.local_world > membership.world) {
    variables.fail_with(variables.quote(names.local_world) + " is more than " + variables.quote(names.world));
  }
  if (membership.local_rank > membership.rank) {
    variables.fail_with(variables.quote(names.local_rank) + " is more than " + variables.quote(names.rank));
  }
}

bool any_is_set(const LauncherVariables& variables, const StandingNames& names) {
  return !variables.first_set({names.rank, names.world, names.local_rank, names.local_world}).empty();
}

Membership read_standing(const LauncherVariables& variables, const StandingNames& names) {
  Membership membership;
  const std::string witness =
      variables.first_set({names.rank, names.world, names.local_rank, names.local_world});
  membership.rank = variables.number_with(names.rank, witness);
  membership.world = variables.number_with(names.world, witness);
  membership.local_rank = variables.number_with(names.local_rank, witness);
  membership.local_world = variables.number_with(names.local_world, witness);
  check_standing(variables, names, membership);
  return membership;
}

Identity launched_worker(const Membership& membership, std::string_view launcher) {
  Identity identity;
  identity.task = {.job = "worker", .index = membership.rank};
  identity.membership = membership;
  identity.is_chief = membership.rank == 0;
  identity.source = launcher;
  return identity;
}

}  // namespace tutti::discovery
