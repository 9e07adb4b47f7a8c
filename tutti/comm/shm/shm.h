#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "tutti/comm/rendezvous.h"
#include "tutti/comm/transport.h"

namespace tutti::comm {

struct ShmOptions {
  int rank = 0;
  int world = 1;
  std::string who;  // this rank, for people: "worker/2"
  std::chrono::milliseconds timeout{60000};
};

// Ranks that are processes of one user on one host. Their memory is anonymous (memfd): it has no name that
// could be guessed, nothing of it is in /dev/shm, no limit of a container's /dev/shm applies, and it is gone
// with the last process. The others get at it through /proc/PID/fd, which the system grants to the same user
// alone. Every rank calls it; they meet at the rendezvous.
std::unique_ptr<Transport> shm_transport(std::shared_ptr<Rendezvous> rendezvous, const ShmOptions& options);

// Throws where this system does not let processes share memory in this way.
void check_shared_memory();

// The same for processes that are on one host and see one another's /proc, and for no others.
std::string host_identity();

}  // namespace tutti::comm
