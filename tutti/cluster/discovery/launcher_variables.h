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
  // The first of these that is set, else "".
  std::string first_set(std::initializer_list<std::string> names) const;

  // A whole number of 0 or more; nothing where the variable is not set.
  std::optional<int> number(const std::string& name) const;
  // The same, but it has to be there since `witness` is.
  int number_with(const std::string& name, const std::string& witness) const;

  // "RANK=3" or "RANK (not set)".
  std::string quote(const std::string& name) const;

  [[noreturn]] void fail_with(const std::string& what) const;

 private:
  const Environment& environment_;
  std::string_view launcher_;
};

// The names of the variables in which a launcher says where a task stands; "" for one that it does not have.
struct StandingNames {
  std::string rank = "";
  std::string world = "";
  std::string local_rank = "";
  std::string local_world = "";
};

// All four, checked against each other.
Membership read_standing(const LauncherVariables& variables, const StandingNames& names);
// Throws where rank and world, or their local pair, cannot be true together.
void check_standing(const LauncherVariables& variables, const StandingNames& names,
                    const Membership& membership);

// A worker of a world whose addresses nobody names.
Identity launched_worker(const Membership& membership, std::string_view launcher);

}  // namespace tutti::discovery
