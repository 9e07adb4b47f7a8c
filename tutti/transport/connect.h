#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/cluster/task_context.h"
#include "tutti/transport/ranks.h"
#include "tutti/transport/roster.h"

namespace tutti::comm {

struct ConnectOptions {
  Meeting meeting = {};
  // Connects the devices of the ranks; may return null. Empty: they have none.
  std::function<std::unique_ptr<Carrier>(const TaskContext&, const Roster&, Transport&)> on_device = {};
  // Returns lines that have to be the same for a worker that joins. Called by a thread that computes.
  std::function<std::vector<std::string>()> kernels = {};
};

// Connects the workers of this job over the backend named by --comm. `auto` means "shm+tcp": shared memory
// within a host and TCP between hosts. Only one of the two is used if the other has nothing to do, and only
// TCP if the ranks of some host are not contiguous. Workers meet at the address of rank 0 given by the
// launcher or the cluster, or through MPI if mpirun gives none. Every worker calls this once; a second call
// throws InvalidArgument. A Timeout names the workers that did not connect.
std::unique_ptr<Ranks> connect_ranks(const TaskContext& context, const ConnectOptions& options = {});

}  // namespace tutti::comm
