#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/environment.h"
#include "tutti/base/log.h"

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

// The variables of `-x`: NAME, whose value is taken from this environment, or NAME=VALUE.
struct ForwardedVariables {
  std::vector<std::string> words;  // as given, for mpirun's own -x
  Environment environment;         // this environment with the values of NAME=VALUE set
};

// Throws InvalidArgument if a name is not a valid variable name or is given twice, if NAME is not set here,
// or if the variable says which task a process is: each process has its own.
ForwardedVariables forward_variables(const std::vector<std::string>& words, const Environment& environment);

// The job that the user has requested.
struct MpirunJob {
  std::vector<HostSlots> hosts;
  int workers = 0;  // at most the number of slots; 0: all slots
  std::vector<std::string> command;
  std::vector<std::string> forwarded = {};  // -x: NAME or NAME=VALUE
};

// Returns the command line for mpirun. Besides the variables of -x it forwards our own (TUTTI_*) to the other
// hosts, but not those that say which task a process is, since Open MPI numbers its ranks itself.
std::vector<std::string> mpirun_command(const MpirunJob& job, const Environment& environment);
Environment mpirun_environment(const Environment& environment);

// Replaces this process by Open MPI's mpirun. Only returns by throwing InvalidArgument, if there is no mpirun
// or TF_CONFIG names hosts as well.
[[noreturn]] void become_mpirun(const MpirunJob& job, const Environment& environment, const Log& log);

}  // namespace tutti
