#pragma once

#include <cstdint>

#include "tutti/comm/communicator.h"
#include "tutti/params/buckets.h"

namespace tutti {

// Returns the norm of all gradients together.
double norm_of(const Buckets& buckets);
// Returns the factor that limits the norm of gradients to `largest`; 1 if it is within the limit already.
double clip_factor(double norm, double largest);

// Scales the gradients so that the norm of all of them together is at most `largest`; returns the norm
// before. In clip_norm() each worker holds all gradients and nothing is sent. In clip_norm_scattered() each
// worker holds and scales its own part. Both give the same bits.
double clip_norm(const Buckets& buckets, double largest);
double clip_norm_scattered(comm::Communicator& comm, const Buckets& buckets, double largest, int64_t step);

}  // namespace tutti
