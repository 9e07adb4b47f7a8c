#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "tools/launch/hosts.h"
#include "tools/launch/signal_pipe.h"
#include "tutti/base/log.h"

namespace tutti {

// What each launcher of the row starts, by place in the row.
struct MeetingResult {
  std::vector<int> workers;
  std::string launch;         // what tells this start of the job from all others (Identity::launch)
  std::optional<int> signal;  // one that this process got meanwhile, and that ended the wait
};

// Tells the launchers of all other hosts how many workers this one starts, and hears the same of them. They
// meet at the first host's address, which that launcher holds until all have come; it is free before any of
// them is told so, and their workers come there. A launcher that goes away before all have come may come
// again.
//   Timeout          not all came in time; names those who are missing, to all that have come
//   InvalidArgument  TF_CONFIG is not the same on all hosts, or the address is in use
//   PeerLost         a launcher went away when all had come
MeetingResult meet(const Hosts& hosts, int workers, std::chrono::milliseconds timeout, SignalPipe& signals,
                   const Log& log);

// The first signal that is not about a child.
std::optional<int> next_stop_signal(SignalPipe& signals);

}  // namespace tutti
