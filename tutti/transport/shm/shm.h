#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tutti/transport/rendezvous.h"
#include "tutti/transport/transport.h"

namespace tutti::comm {

struct ShmOptions {
  int rank = 0;
  int world = 1;
  std::vector<std::string> who = {};         // by rank, for error messages; empty: "rank 3"
  std::chrono::milliseconds timeout{60000};  // for all ranks to connect
};

// Connects ranks that are processes of one user on one host. Their memory is anonymous (memfd): it has no
// name that could be guessed, is not in /dev/shm, is not subject to a container's limit of /dev/shm, and
// is freed with the last process. Other ranks open it through /proc/PID/fd, which the system allows only to
// the same user. Every rank calls this; they meet at the rendezvous. Throws PeerLost if a rank has ended,
// Timeout if one does not connect, and InvalidArgument if the system does not let the ranks share memory or
// check whether the others are alive.
std::unique_ptr<Transport> shm_transport(std::shared_ptr<Rendezvous> rendezvous, const ShmOptions& options);

// Throws if this system does not let processes share memory in this way.
void check_shared_memory();

}  // namespace tutti::comm
