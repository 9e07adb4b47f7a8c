#pragma once

#include <cstdint>
#include <string>

// Tables to learn from: 210 descriptors of things that five hidden numbers decide, and whether a thing is
// active, which a curved function of the five says, with noise. Some cells are empty, and the two tables of a
// shard have their rows in different orders. The same bytes each time.
void make_data(const std::string& folder, int64_t rows, int64_t shards, uint64_t seed);
