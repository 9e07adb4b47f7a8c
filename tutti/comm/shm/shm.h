#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tutti/comm/rendezvous.h"
#include "tutti/comm/transport.h"

namespace tutti::comm {

struct ShmOptions {
  int rank = 0;
  int world = 1;
  std::vector<std::string> who = {};         // by rank, for error messages; empty: "rank 3"
  std::chrono::milliseconds timeout{60000};  // for everybody to come
};

// Ranks that are processes of one user on one host. Their memory is anonymous (memfd): it has no name that
// could be guessed, nothing of it is in /dev/shm, no limit of a container's /dev/shm applies, and it is gone
// with the last process. The others get at it through /proc/PID/fd, which the system grants to the same user
// alone. Every rank calls it; they meet at the rendezvous. A rank that has ended is a PeerLost, one that does
// not come a Timeout; a system that does not let them share memory, or see whether the others live, is an
// InvalidArgument.
std::unique_ptr<Transport> shm_transport(std::shared_ptr<Rendezvous> rendezvous, const ShmOptions& options);

// Throws where this system does not let processes share memory in this way.
void check_shared_memory();

}  // namespace tutti::comm
