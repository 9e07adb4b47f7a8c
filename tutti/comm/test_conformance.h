#pragma once

#include "tutti/comm/communicator.h"

namespace tutti::comm {

// Checks that every backend must pass, whether its ranks are threads or processes. Each rank calls these with
// its own communicator. Each throws an Error if a check fails.
void check_reductions(Communicator& comm);
void check_combinations(Communicator& comm);
void check_movements(Communicator& comm);
void check_strided_and_empty(Communicator& comm);
void check_messages(Communicator& comm);
void check_order_behind(Communicator& comm);
void check_split(Communicator& comm);
void check_bad_arguments(Communicator& comm);
void check_large(Communicator& comm);
// Check that messages of the wrong size, and operations that differ, are rejected. Not part of
// check_conformance(), since NCCL does not detect this, and MPI no large messages from two roots.
void check_misfits(Communicator& comm);
void check_different_roots(Communicator& comm);
void check_empty_beside_others(Communicator& comm);

// Runs all checks that every backend must pass.
void check_conformance(Communicator& comm);

}  // namespace tutti::comm
