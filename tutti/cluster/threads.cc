#include "tutti/cluster/threads.h"

#include <dlfcn.h>
#include <thread>

#include <ATen/Parallel.h>

#include "tutti/base/start_thread.h"

namespace tutti {

// LibTorch sets only the threads of OpenMP and MKL; OpenBLAS, if it is the BLAS, has a separate thread pool.
// The pool is not resized needlessly, because other threads may be using it.
void set_threads(int threads) {
  // LibTorch would wait forever for threads that could not be started, so check first.
  require_threads(static_cast<int>(std::thread::hardware_concurrency()), "the threads of LibTorch");
  at::set_num_threads(threads);
  using GetThreads = int (*)();
  using SetThreads = void (*)(int);
  const auto get = reinterpret_cast<GetThreads>(dlsym(RTLD_DEFAULT, "openblas_get_num_threads"));
  const auto set = reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "openblas_set_num_threads"));
  if (set != nullptr && (get == nullptr || get() != threads)) set(threads);
}

void set_inter_op_threads(int threads) {
  const auto current = static_cast<int>(at::get_num_interop_threads());  // in newer versions a size_t
  if (threads != current) at::set_num_interop_threads(threads);
}

}  // namespace tutti
