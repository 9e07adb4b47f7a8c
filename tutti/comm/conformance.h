#pragma once

#include "tutti/comm/communicator.h"

namespace tutti::comm {

// What every backend has to do, whoever its ranks are. Each rank calls these with its own communicator; what
// is wrong is a gtest failure in one process, and an Error in every other test program.
void check_reductions(Communicator& comm);
void check_movements(Communicator& comm);
void check_strided_and_empty(Communicator& comm);
void check_messages(Communicator& comm);
void check_order_behind(Communicator& comm);
void check_split(Communicator& comm);
void check_bad_arguments(Communicator& comm);
void check_large(Communicator& comm);
// Of sizes that do not fit no message is taken for another: an InvalidArgument, or over Gloo a Timeout. Not
// one of all, since NCCL does not see it.
void check_misfits(Communicator& comm);

// All of them.
void check_conformance(Communicator& comm);

}  // namespace tutti::comm
