#pragma once

#include <cstddef>

#include "tutti/comm/reduce.h"
#include "tutti/comm/transport.h"

namespace tutti::comm {

// All-reduce of a few elements, in place, by recursive doubling: in each of log2(world) rounds, the ranks
// below the two children of a node of the tree exchange the values of these children, so that every rank
// computes the same sums in the same order. Takes fewer messages than slices would, but moves more bytes.
void reduce_by_doubling(Transport& transport, std::byte* data, const Reduction& reduction,
                        const Operation& operation);

}  // namespace tutti::comm
