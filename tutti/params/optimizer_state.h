#pragma once

#include "tutti/base/json.h"
#include "tutti/params/optimizer.h"
#include "tutti/params/parameters.h"

namespace tutti {

// What there is of slots, without what is in them: {"steps": 3, "slots": [{"name", "block", ...}, ...]}.
Json outline_of(const Optimizer::State& state);
// The same slots, with memory that nothing has been written to. An outline that does not make sense is an
// InvalidArgument.
Optimizer::State state_of(const Json& outline);

// Puts a part of a slot where it belongs in a state of whole slots, as long as the blocks of the parameters.
void put(Optimizer::State& whole, const Parameters& parameters, const Optimizer::Slot& part);
// Of whole slots, what belongs to [begin, end) of a block. It sees the same memory.
std::vector<Optimizer::Slot> part_of(const Optimizer::State& whole, size_t block, int64_t begin, int64_t end);

}  // namespace tutti
