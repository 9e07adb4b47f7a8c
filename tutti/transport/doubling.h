#pragma once

#include "tutti/transport/transport.h"

namespace tutti::comm {

// Computes an all-reduce of a few elements by recursive doubling: in each of log2(world) rounds, the ranks
// below the two children of a node of the tree exchange the values of these children, so that every rank
// computes the same sums in the same order. Takes fewer messages than slices would, but moves more bytes.
void reduce_by_doubling(Transport& transport, const ArraySum& sum, const Operation& operation);
// Returns true if this is the fastest way, and supports the reduction.
bool is_for_doubling(const ArraySum& sum, int world);

}  // namespace tutti::comm
