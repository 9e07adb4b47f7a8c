#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "tools/launch/hosts.h"
#include "tools/launch/signal_pipe.h"
#include "tutti/base/log.h"

namespace tutti {

// The number of workers of each launcher, in the order of the hosts.
struct MeetingResult {
  std::vector<int> workers;
  std::string launch;         // identifies this start of the job (Identity::launch)
  std::optional<int> signal;  // that this process received meanwhile and that ended the wait
};

struct MeetingOptions {
  std::string secret;  // of all launchers; "": there is none
  std::chrono::milliseconds timeout{300'000};
};

// Exchanges the numbers of workers with the launchers of all other hosts. They meet at the first host's
// address. That launcher listens there until all have connected, and stops listening before it answers them,
// since their workers connect to the same address. A launcher that disconnects before all have connected may
// connect again.
//   Timeout          not all connected in time; all that did name the missing ones
//   InvalidArgument  TF_CONFIG or the secret is not the same on all hosts, or the address is in use
//   PeerLost         a launcher disconnected after all had connected
MeetingResult meet(const JobHosts& hosts, int workers, const MeetingOptions& options, SignalPipe& signals,
                   const Log& log);

// Returns the next signal other than SIGCHLD.
std::optional<int> next_stop_signal(SignalPipe& signals);

}  // namespace tutti
