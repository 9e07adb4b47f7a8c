#include "tutti/train/threads.h"

#include <dlfcn.h>

#include <ATen/Parallel.h>

namespace tutti {

// LibTorch sets the threads of OpenMP and MKL alone; OpenBLAS, where it is the BLAS, has a pool of its own.
void set_threads(int threads) {
  at::set_num_threads(threads);
  using SetThreads = void (*)(int);
  if (const auto set = reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "openblas_set_num_threads")))
    set(threads);
}

void set_threads(const Context& context) {
  set_threads(context.threads());
  const auto wanted = static_cast<int>(context.flags().inter_op_threads);
  if (wanted > 0 && wanted != at::get_num_interop_threads()) at::set_num_interop_threads(wanted);
}

}  // namespace tutti
