#include "tutti/cluster/threads.h"

#include <algorithm>
#include <dlfcn.h>
#include <sched.h>
#include <thread>
#include <unistd.h>

#include <ATen/Parallel.h>

#include "tutti/base/start_thread.h"

namespace tutti {
namespace {

// Returns the number of cores that a process may run on; 0 is this process.
int cores_of(pid_t process) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(process, sizeof(cores), &cores) == 0) return std::max(1, CPU_COUNT(&cores));
  // The parent belongs to another user, or there are more cores than a cpu_set_t can hold.
  return process == 0 ? std::max(1, static_cast<int>(std::thread::hardware_concurrency())) : cores_of(0);
}

}  // namespace

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

int share_of_cores(int local_world) {
  const int together = cores_of(getppid());
  return std::clamp(together / std::max(1, local_world), 1, cores_of(0));
}

bool have_a_core_each(int local_world) { return cores_of(getppid()) >= local_world; }

}  // namespace tutti
