#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/environment.h"
#include "tutti/base/log.h"

namespace tutti {

// A host of `-H` and how many workers it takes.
struct HostSlots {
  std::string host;
  int slots = 1;

  bool operator==(const HostSlots&) const = default;
};

// "a:4,b:2,c" (one slot where none are named). InvalidArgument that quotes the bad piece: a host is named
// once, by a name or an IPv4 address.
std::vector<HostSlots> parse_hosts(std::string_view text);

// What the user has asked for.
struct MpirunJob {
  std::vector<HostSlots> hosts;
  int workers = 0;  // at most as many as there are slots; 0: all of them
  std::vector<std::string> command;
};

// What mpirun is given: our own variables only it can take to other hosts, but never those that say who a
// process is. Open MPI counts its ranks itself.
std::vector<std::string> mpirun_command(const MpirunJob& job, const Environment& environment);
Environment mpirun_environment(const Environment& environment);

// Becomes Open MPI's mpirun. Returns only as an InvalidArgument: there is none, or TF_CONFIG names other
// hosts.
[[noreturn]] void become_mpirun(const MpirunJob& job, const Environment& environment, const Log& log);

}  // namespace tutti
