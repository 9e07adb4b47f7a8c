#pragma once

namespace tutti {

// Sets the number of threads inside one kernel, for LibTorch's own kernels (in the calling thread and in
// threads that have not run a kernel yet) and for OpenBLAS (in the whole process).
void set_threads(int threads);

// Sets the number of kernels that may run in parallel. Throws if LibTorch has already started to use these
// threads, because it does not allow a change then.
void set_inter_op_threads(int threads);

}  // namespace tutti
