#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "tools/launch/group.h"
#include "tools/launch/host_slots.h"
#include "tools/launch/launcher.h"
#include "tools/launch/signal_pipe.h"
#include "tutti/base/log.h"

namespace tutti {

// The command that reaches another host, and the host launcher there.
struct RemoteShell {
  std::vector<std::string> words;  // "ssh" with its options, or a program that is called in the same way
  std::string tutti;               // the path of `tutti` on the other hosts

  // Splits `command` at spaces; "" means ssh, and "" for `tutti` the path of this program.
  static RemoteShell parse(const std::string& command, std::string tutti);
  bool is_ssh() const;
  // Returns the command line that starts a host launcher with these arguments on `host`. It contains neither
  // the secret nor any other data of the job.
  std::vector<std::string> command(const std::string& host, const std::vector<std::string>& launcher) const;
};

struct HostsStart {
  std::vector<StartedHost> hosts;
  std::optional<int> signal;  // received meanwhile; all host launchers have then been ended
  std::string launch = {};    // as Identity::launch
  bool others = false;        // there are other hosts than this one
  HostAgain again = {};       // the arguments of start_hosts() must outlive it
  // Gives this host another name before `again` is called for it. Likewise.
  std::function<void(size_t host, const std::string& name)> set_host = {};
};

// Starts a host launcher on each host that has a name, waits until all are ready, and sends them the tasks of
// a new launch of the job. The first host has the servers, the master and the evaluator besides its workers.
// Throws an error that names the host if one cannot be reached, has no `tutti` of this version at that path,
// or is not ready within `options.start_timeout`; the other host launchers have then been ended. With --min,
// this process will serve the list of the workers at `members_port`.
HostsStart start_hosts(const std::vector<HostSlots>& hosts, const std::vector<std::string>& command,
                       const ForwardedVariables& variables, const RemoteShell& shell,
                       const LaunchOptions& options, int members_port, SignalPipe& signals);

}  // namespace tutti
