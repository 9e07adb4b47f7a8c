#pragma once

#include "tutti/base/json.h"
#include "tutti/params/optimizer.h"
#include "tutti/params/parameters.h"

namespace tutti {

// Describes the slots, and the archive if there is one, without their contents: {"steps": 3, "slots":
// [{"name", "block", ...}, ...], "archive": 1000}.
Json outline_of(const Optimizer::State& state);
// Returns slots and archive as described by the outline, with uninitialised memory. Throws InvalidArgument if
// the outline is invalid.
Optimizer::State state_of(const Json& outline);

// Copies a part of a slot to its place in `whole`, whose slots are as long as the blocks of the parameters.
void put(Optimizer::State& whole, const Parameters& parameters, const Optimizer::Slot& part);
// Returns the elements [begin, end) of a block from whole slots, as views of the same memory.
std::vector<Optimizer::Slot> part_of(const Optimizer::State& whole, size_t block, int64_t begin, int64_t end);

}  // namespace tutti
