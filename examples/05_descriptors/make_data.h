#pragma once

#include <cstdint>
#include <string>

// Writes tables to learn from: 210 descriptors of each object, which depend on five hidden numbers, and a
// label that says whether the object is active, a nonlinear function of these numbers with noise. Some cells
// are empty, and the two tables of a shard have their rows in different orders. Equal arguments give equal
// bytes.
void make_data(const std::string& folder, int64_t rows, int64_t shards, uint64_t seed);
