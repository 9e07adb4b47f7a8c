#pragma once

#include "tutti/comm/communicator.h"
#include "tutti/params/optimizer.h"
#include "tutti/params/parameters.h"
#include "tutti/store/named_tensors.h"

// Functions that carry parameters and the state of their optimiser between tasks.
namespace tutti {

// Convert a state to a snapshot, which can be sent, and back, without copies. state_of() throws
// InvalidArgument if the snapshot was not made from an optimiser's state.
store::Snapshot snapshot_of(const Optimizer::State& state);
Optimizer::State state_of(const store::Snapshot& snapshot);

// Returns the vector of the slot of this name, which is as long as the block of the parameters. Adds a slot
// of zeros if there is none.
torch::Tensor whole_slot(std::vector<Optimizer::Slot>& slots, const Parameters& parameters,
                         const std::string& name, size_t block);
// Copies a part of a slot to its place in `whole`, whose slots are as long as the blocks of the parameters.
void put(Optimizer::State& whole, const Parameters& parameters, const Optimizer::Slot& part);
// Returns the elements [begin, end) of a block from whole slots, as views of the same memory.
std::vector<Optimizer::Slot> slots_in(const Optimizer::State& whole, size_t block, int64_t begin,
                                      int64_t end);

// The functions below have to be called by every worker, between two steps.

// Copies the parameters and buffers of rank `root` to all ranks.
void broadcast(comm::Communicator& comm, Parameters& parameters, int root);
// Returns the state of rank `root` on every rank. The states that other ranks pass in are ignored.
Optimizer::State broadcast(comm::Communicator& comm, const Optimizer::State& state, int root);

// Collects the parts of the optimiser's state that the workers hold. Returns the whole state at rank 0, and
// an empty state on all other ranks.
Optimizer::State gather_state(comm::Communicator& comm, const Parameters& parameters,
                              const Optimizer& optimizer);

}  // namespace tutti
