#include "tutti/base/cores.h"

#include <algorithm>
#include <sched.h>
#include <thread>
#include <unistd.h>

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

int share_of_cores(int local_world) {
  const int together = cores_of(getppid());
  return std::clamp(together / std::max(1, local_world), 1, cores_of(0));
}

bool have_a_core_each(int local_world) { return cores_of(getppid()) >= local_world; }

}  // namespace tutti
