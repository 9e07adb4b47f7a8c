#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tutti/base/environment.h"
#include "tutti/cluster/identity.h"

namespace tutti::discovery {

// Reads what one launcher put into the environment. Errors name the launcher, the variable and its value.
class LauncherVariables {
 public:
  // Both must outlive this.
  LauncherVariables(const Environment& environment, std::string_view launcher)
      : environment_(environment), launcher_(launcher) {}

  bool has(const std::string& name) const { return environment_.has(name); }
  std::optional<std::string> text(const std::string& name) const { return environment_.get(name); }
  // Returns the first of these variables that is set, or "".
  std::string first_set(std::initializer_list<std::string> names) const;

  // Returns a whole number of at least 0, or nullopt if the variable is not set.
  std::optional<int> number(const std::string& name) const;
  // Like above, but the variable has to be set if `witness` is.
  int number_with(const std::string& name, const std::string& witness) const;

  // Returns "RANK=3" or "RANK (not set)".
  std::string quote(const std::string& name) const;

  [[noreturn]] void fail_with(const std::string& what) const;

 private:
  const Environment& environment_;
  std::string_view launcher_;
};

// The names of a launcher's variables for the position of a task; "" for one that it does not set.
struct StandingNames {
  std::string rank = "";
  std::string world = "";
  std::string local_rank = "";
  std::string local_world = "";
};

// Returns true if the launcher has set any of these variables. If only some are set, the others are missing.
bool any_is_set(const LauncherVariables& variables, const StandingNames& names);
// Reads all four numbers and checks them against each other. At least one of them is set.
Membership read_standing(const LauncherVariables& variables, const StandingNames& names);
// Throws if rank and world, or the local pair, are inconsistent.
void check_standing(const LauncherVariables& variables, const StandingNames& names,
                    const Membership& membership);

// Returns the identity of a worker for which the launcher provides no addresses.
Identity launched_worker(const Membership& membership, std::string_view launcher);

}  // namespace tutti::discovery
