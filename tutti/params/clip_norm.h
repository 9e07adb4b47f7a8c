#pragma once

#include <cstdint>

#include "tutti/comm/communicator.h"
#include "tutti/params/buckets.h"

namespace tutti {

// The norm of all gradients together.
double norm_of(const Buckets& buckets);
// What they are multiplied by so that it is at most `largest`; 1 where it is already.
double clip_factor(double norm, double largest);

// Scales gradients so that the norm of all of them together is at most `largest`; returns what it was. Where
// they are scattered, each worker has and scales its own part; else each has all, and nothing is sent. The
// bits are the same either way.
double clip_norm(const Buckets& buckets, double largest);
double clip_norm_scattered(comm::Communicator& comm, const Buckets& buckets, double largest, int64_t step);

}  // namespace tutti
