#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tutti/transport/rendezvous.h"
#include "tutti/transport/transport.h"

namespace tutti::comm {

struct MpiOptions {
  std::vector<std::string> who = {};         // by rank, for error messages; empty: "rank 3"
  std::string holder = "rank 0 of the job";  // the rank that holds the board, for error messages
  std::chrono::milliseconds timeout{60000};  // for all ranks to connect
};

// Returns true if this build has MPI.
bool mpi_built();

// Call this once per process, before the other functions here. Harmless if MPI is already initialised. MPI is
// finalised at process exit if it was initialised here and mpi_never_finalise() was not called.
void mpi_initialise();

// Call this after any failure, whatever backend is used: finalising MPI waits for all ranks and has no
// timeout, so it would wait forever for ranks that never reach it. If a rank exits without finalising, mpirun
// ends all ranks. Does nothing if the build has no MPI.
void mpi_never_finalise() noexcept;

// Returns the root's text at every rank of the job. Throws Timeout if it does not arrive.
std::string mpi_broadcast_text(const std::string& text, int root, std::chrono::milliseconds timeout);

// Returns a transport for all ranks that mpirun started, over MPI's two-sided messages. Nothing else may use
// the board (with_prefix), and it must exist as long as the transport.
//
// If the build has no MPI, this, mpi_initialise() and mpi_broadcast_text() throw Unimplemented.
std::unique_ptr<Transport> mpi_transport(std::shared_ptr<Rendezvous> board, const MpiOptions& options);

}  // namespace tutti::comm
