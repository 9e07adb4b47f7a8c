#pragma once

namespace tutti {

// Threads inside one kernel, of all kernels that this thread calls.
void set_threads(int threads);

}  // namespace tutti
