#pragma once

#include "tutti/cluster/context.h"

namespace tutti {

// Threads inside one kernel, of all kernels that this thread calls.
void set_threads(int threads);

// Those, and the threads of kernels that run beside each other: as the flags say. The latter cannot be
// changed any more where LibTorch has begun to use them.
void set_threads(const Context& context);

}  // namespace tutti
