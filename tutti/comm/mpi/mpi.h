#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tutti/comm/rendezvous.h"
#include "tutti/comm/transport.h"

namespace tutti::comm {

struct MpiOptions {
  std::vector<std::string> who = {};         // by rank, for error messages; empty: "rank 3"
  std::chrono::milliseconds timeout{60000};  // for everybody to come
};

// Whether this build can do it.
bool mpi_built();

// Once a process, before all else here; harmless when MPI has been initialised already. MPI is finalised when
// the process exits, if it was initialised here and nobody has called mpi_never_finalise().
void mpi_initialise();

// To be called when something has failed, whatever carries the operations: finalising waits for all ranks
// and knows no timeout, so it would wait for ever for those that do not come; mpirun ends them all when one
// leaves without it. Harmless without MPI.
void mpi_never_finalise() noexcept;

// The root's text, at every rank of the job. A Timeout where it does not come.
std::string mpi_broadcast_text(const std::string& text, int root, std::chrono::milliseconds timeout);

// All ranks that mpirun started, over MPI's two-sided messages. The table serves nothing else (with_prefix),
// and has to last as long as the transport.
//
// Without MPI at build time this, and what meets, is Unimplemented.
std::unique_ptr<Transport> mpi_transport(std::shared_ptr<Rendezvous> table, const MpiOptions& options);

}  // namespace tutti::comm
