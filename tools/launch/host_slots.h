#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/environment.h"

namespace tutti {

// A host of `-H` and its number of slots for workers.
struct HostSlots {
  std::string host;
  int slots = 1;

  bool operator==(const HostSlots&) const = default;
};

// Parses "a:4,b:2,c" (one slot if no number is given). Throws an InvalidArgument that quotes the invalid
// part. Each host must be named once, by a name or an IPv4 address.
std::vector<HostSlots> parse_hosts(std::string_view text);

// Returns the hosts that `workers` tasks occupy, slot by slot in the given order, with the number of tasks of
// each; 0 workers: all slots. Throws InvalidArgument if there are fewer slots.
std::vector<HostSlots> fill_slots(const std::vector<HostSlots>& hosts, int workers);

// Returns true if the name or address belongs to the machine on which this process runs.
bool is_this_host(const std::string& host);

// The variables of `-x`: NAME, whose value is taken from this environment, or NAME=VALUE.
struct ForwardedVariables {
  std::map<std::string, std::string> named;  // with their values
  Environment environment;                   // this environment with the values of NAME=VALUE set
};

// The variable with the command to reach other hosts. It is for the launcher only; programs do not accept it.
inline constexpr const char* kRshVariable = "TUTTI_RSH";

// Leaves out kRshVariable. Throws InvalidArgument if a name is not a valid variable name or is given twice,
// if NAME is not set here, or if the variable says which task a process is, since it differs between
// processes.
ForwardedVariables forward_variables(const std::vector<std::string>& words, const Environment& environment);

// Returns the environment without the variables that say which task a process is. A launcher above this one
// may have set them.
Environment without_identity(const Environment& environment);

// Returns the variables for the tasks on other hosts: the variables of -x, and Tutti's (TUTTI_*) except for
// those that say which task a process is.
std::map<std::string, std::string> variables_to_forward(const ForwardedVariables& variables);

// Quotes a word for a POSIX shell if necessary.
std::string quoted(const std::string& word);

}  // namespace tutti
